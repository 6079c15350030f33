-- A schedule in the comment of a procedure, read by `pgmill schedule sync` or by the next worker that starts.
CREATE OR REPLACE PROCEDURE sample_nightly() LANGUAGE plpgsql AS $$
BEGIN
    RAISE NOTICE 'nothing to clean up';
END
$$;
COMMENT ON PROCEDURE sample_nightly() IS 'Removes obsolete data.
    @daily(03:15, days: weekdays)
    @monthly(last, 23:30, zone: Europe/Berlin)
    @retry(max_attempts: 3, interval: 60s)
    @fire(max_lateness: 4h, jitter: 5 min)
    @job("Nightly cleanup", category: "Ops")';
