"""The look of the page, and the few lines of script that sort its tables."""

from longtail.compare.report.svg import PALETTE

_DARK = (
    "#6cb2ff",
    "#ff9a66",
    "#74c687",
    "#d79cf0",
    "#5fcbd9",
    "#f58ab0",
    "#d9bd4a",
    "#b3a1ff",
    "#b8c0c8",
    "#b5cf6b",
)


def _variables(colours: tuple[str, ...]) -> str:
    return " ".join(f"--c{i}: {colour};" for i, colour in enumerate(colours))


CSS = f"""
:root {{ color-scheme: light dark; --ink: #1c2024; --soft: #5c6670; --paper: #ffffff;
  --card: #f6f7f9; --rule: #dde1e6; --good: #e2f3e5; --bad: #fbe6e3; {_variables(PALETTE)} }}
@media (prefers-color-scheme: dark) {{ :root {{ --ink: #e6e8ea; --soft: #a2abb4; --paper: #14171a;
  --card: #1d2125; --rule: #343a40; --good: #1d3a24; --bad: #47231f; {_variables(_DARK)} }} }}
* {{ box-sizing: border-box; }}
body {{ margin: 0 auto; max-width: 68rem; padding: 1.5rem 1rem 4rem; color: var(--ink);
  background: var(--paper); font: 16px/1.55 system-ui, sans-serif; overflow-wrap: anywhere; }}
h1 {{ font-size: 1.7rem; line-height: 1.2; margin: .5rem 0; }}
h2 {{ font-size: 1.25rem; margin: 2.6rem 0 .4rem; }}
h3 {{ font-size: 1rem; margin: 1.4rem 0 .3rem; }}
p, ul {{ max-width: 46rem; }}
.soft, figcaption {{ color: var(--soft); font-size: .9rem; }}
.scroll {{ overflow-x: auto; margin: .6rem 0; }}
table {{ border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }}
th, td {{ padding: .3rem .6rem; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--rule); }}
th {{ font-weight: 600; vertical-align: bottom; white-space: normal; overflow-wrap: normal; }}
th:first-child, td:first-child, .text th, .text td {{ text-align: left; }}
td:first-child {{ position: sticky; left: 0; background: var(--paper); min-width: 9.5rem;
  max-width: 15rem; white-space: normal; }}
th button {{ all: unset; cursor: pointer; font-weight: 600; }}
th button:focus-visible {{ outline: 2px solid var(--c0); }}
th button::after {{ content: "\\00a0↕"; color: var(--soft); font-size: .75em; }}
th[aria-sort=ascending] button::after {{ content: "\\00a0↑"; }}
th[aria-sort=descending] button::after {{ content: "\\00a0↓"; }}
td small {{ color: var(--soft); }}
.best {{ font-weight: 700; }}
.good {{ background: var(--good); }}
.bad {{ background: var(--bad); }}
.dot {{ display: inline-block; width: .7em; height: .7em; border-radius: 50%; margin-right: .4em; }}
.plots {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 24rem), 1fr));
  gap: 1rem; margin: .8rem 0; }}
figure {{ margin: 0; padding: .8rem; background: var(--card); border-radius: .5rem; }}
figure svg {{ display: block; width: 100%; height: auto; max-width: 36rem; margin: 0 auto; }}
figcaption {{ margin-top: .3rem; }}
article {{ background: var(--card); border-radius: .5rem; padding: .8rem 1rem; margin: .8rem 0; }}
article p {{ margin: .2rem 0 .5rem; max-width: none; white-space: pre-line; }}
article table {{ font-size: .85rem; }}
article td {{ white-space: normal; text-align: left; vertical-align: top; background: none; }}
article td:first-child {{ background: none; white-space: nowrap; }}
.label {{ display: inline-block; border: 1px solid var(--rule); border-radius: .8em;
  padding: 0 .5em; margin: .1em .2em .1em 0; }}
.right {{ background: var(--good); font-weight: 600; }}
.failed {{ border-left: 4px solid var(--c1); padding: .2rem .8rem; background: var(--card); }}
details {{ margin: .8rem 0; }}
summary {{ cursor: pointer; color: var(--c0); }}
pre, code {{ font-family: ui-monospace, monospace; font-size: .85rem; }}
pre {{ background: var(--card); padding: .7rem; border-radius: .5rem; overflow-x: auto;
  white-space: pre-wrap; }}
nav a {{ margin-right: 1rem; white-space: nowrap; }}
a {{ color: var(--c0); }}
@media (max-width: 40rem) {{ td:first-child {{ min-width: 6.5rem; max-width: 8rem; }}
  th, td {{ padding: .3rem .4rem; }} }}
@media print {{ details {{ display: block; }} body {{ max-width: none; }} }}
"""

# A click on a heading sorts by that column: numbers by their data-v, all else as text.
SCRIPT = """
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
"""
