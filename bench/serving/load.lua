-- What wrk sends: the lines of a file as bodies, one after the other, at most at a given rate.
local bodies = {}
for line in io.lines(os.getenv("BODIES")) do bodies[#bodies + 1] = line end
local path, kind = os.getenv("REQUEST_PATH"), os.getenv("CONTENT_TYPE")
local pause = tonumber(os.getenv("PAUSE_MS"))  -- of a client, on average
local i = 0

function request()
  i = i % #bodies + 1
  return wrk.format("POST", path, {["Content-Type"] = kind}, bodies[i])
end

if pause > 0 then
  function delay()  -- clients that do not know of each other
    return math.floor(-math.log(1 - math.random()) * pause + 0.5)
  end
end

function done(summary, latency, requests)
  local errors = summary.errors
  local failed = errors.connect + errors.read + errors.write + errors.status + errors.timeout
  io.write(string.format(
    '{"n": %d, "seconds": %f, "p50": %f, "p90": %f, "p99": %f, "n_failed": %d}\n',
    summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e3,
    latency:percentile(90) / 1e3, latency:percentile(99) / 1e3, failed))
end
