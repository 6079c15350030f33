-- A schedule in the comment of a procedure: `pgmill schedule sync`, or the next worker that starts, reads it.
CREATE OR REPLACE PROCEDURE sample_nightly() LANGUAGE plpgsql AS $$
BEGIN
    RAISE NOTICE 'nothing left to clean up';
END
$$;
COMMENT ON PROCEDURE sample_nightly() IS 'Removes what nobody needs.
    @daily(03:15, days: weekdays)
    @monthly(last, 23:30, zone: Europe/Berlin)
    @retry(max_attempts: 3, interval: 60s)
    @fire(max_lateness: 4h, jitter: 5 min)
    @job("Nightly cleanup", category: "Ops")';
