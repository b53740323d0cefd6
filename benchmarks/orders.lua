-- The load for wrk. Arguments: mode ("first": a fresh key each time, "replay": one of N keys, "read": GET),
-- a prefix for the keys, N. Each write is one of its own: its body names its key. Prints one line of figures at the end.
local body = '{"customer":"cus_4711","items":[{"sku":"tea-250","quantity":2},{"sku":"cup-white","quantity":6}],'
          .. '"currency":"EUR","total":"41.80","note":"%s"}'
local mode, prefix, keys, count

function init(args)
  mode, prefix, keys, count = args[1], args[2], tonumber(args[3]), 0
  wrk.headers["Authorization"] = "Bearer benchmark"
  if mode ~= "read" then
    wrk.method = "POST"
    wrk.headers["Content-Type"] = "application/json"
  end
end

function request()
  if mode == "read" then return wrk.format(nil, "/orders") end
  count = count + 1
  local number = mode == "replay" and count % keys or count
  local key = prefix .. number
  wrk.headers["Idempotency-Key"] = key
  wrk.body = string.format(body, key)
  return wrk.format(nil, "/orders")
end

function done(summary, latency)
  local e = summary.errors
  io.write(string.format('FIGURES {"requests":%d,"microseconds":%d,"errors":%d,"p50_us":%d,"p99_us":%d}\n',
    summary.requests, summary.duration, e.connect + e.read + e.write + e.status + e.timeout,
    latency:percentile(50), latency:percentile(99)))
end
