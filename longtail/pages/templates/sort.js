// A click on a heading sorts by its column: numbers by their data-v, everything else as text.
document.querySelectorAll("table.sortable").forEach(table => {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const falling = head.getAttribute("aria-sort") !== "descending";
      const value = row => {
        const cell = row.cells[column];
        return cell.dataset.v === undefined ? cell.textContent : Number(cell.dataset.v);
      };
      const order = (a, b) => typeof a === "number" && typeof b === "number"
        ? a - b : String(a).localeCompare(String(b));
      const rows = [...body.rows].sort((a, b) => order(value(a), value(b)));
      heads.forEach(each => each.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", falling ? "descending" : "ascending");
      body.replaceChildren(...(falling ? rows.reverse() : rows));
    });
  });
});
