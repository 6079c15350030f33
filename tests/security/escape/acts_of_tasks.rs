//! Acts of the task login as statements of tasks.

use super::Acts;

/// The worker refuses commands that would leave the transaction of the task (0A000), and the server refuses
/// the rest.
pub(super) const OF_TASKS: Acts = &[
    (
        "0A000",
        &[
            "COMMIT",
            "SELECT 1; COMMIT; SELECT 2",
            "ROLLBACK",
            "BEGIN",
            "END",
            "ABORT",
            "START TRANSACTION",
            "COMMIT AND CHAIN",
            "/* x */ COMMIT",
            "-- x\nCOMMIT",
            "SELECT 'a''; '; COMMIT",
            "SELECT $$;$$; COMMIT",
            "PREPARE TRANSACTION 'x'",
            "COMMIT PREPARED 'x'",
            "ROLLBACK PREPARED 'x'",
        ],
    ),
    (
        "42501",
        &[
            "SELECT * FROM mill.tasks",
            "SELECT token FROM mill.tasks WHERE id = current_setting('mill.task_id')::bigint",
            "UPDATE mill.tasks SET failures = 0",
            "DELETE FROM mill.attempts",
            "SELECT mill.enqueue('SELECT 1')",
            "SELECT mill.enqueue('SELECT theirs.pay()', run_as => 'closed')",
            "SELECT mill.cancel({waiting})",
            "SELECT mill.fail({running}, '{token}', 'failed', 'final', NULL, NULL)",
            "SELECT mill.record_attempt(NULL, 'succeeded', true, NULL)",
            "SELECT mill.set_profile('mine')",
            "SET ROLE worker",
            "SET ROLE mill_worker",
            "SET ROLE other; SELECT theirs.pay()",
            "RESET ROLE; SELECT theirs.pay()",
            "SET SESSION AUTHORIZATION other",
            "RESET SESSION AUTHORIZATION; DELETE FROM theirs.secret",
            "SELECT set_config('role', 'other', false)",
            "SELECT set_config('session_authorization', 'worker', false)",
            "SELECT theirs.pay()",
            "DELETE FROM theirs.secret",
            "SELECT pg_terminate_backend({worker_pid})",
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'worker'",
            "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE usename = 'other'",
            "ALTER ROLE etl SUPERUSER",
            "ALTER ROLE worker SET search_path = mine",
            "GRANT mill_worker TO etl",
            "COPY (SELECT 1) TO PROGRAM 'true'",
            "CREATE TRIGGER t AFTER INSERT ON mill.attempts EXECUTE FUNCTION suppress_redundant_updates_trigger()",
            "CREATE OR REPLACE FUNCTION mill.complete_with_proof(bigint, text, xid8, bigint, jsonb) RETURNS void LANGUAGE sql AS ''",
            "DO $$ BEGIN EXECUTE 'SET ROLE mill_owner'; END $$",
            "CREATE FUNCTION mine.g() RETURNS void LANGUAGE plpgsql AS $$ BEGIN DELETE FROM mill.tasks; END $$; SELECT mine.g()",
            // The trigger runs at COMMIT, after the completion.
            "CREATE TABLE mine.d (n int);
             CREATE FUNCTION mine.late() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM theirs.pay(); RETURN NULL; END $$;
             CREATE CONSTRAINT TRIGGER late AFTER INSERT ON mine.d DEFERRABLE INITIALLY DEFERRED
                 FOR EACH ROW EXECUTE FUNCTION mine.late();
             INSERT INTO mine.d VALUES (1)",
        ],
    ),
    (
        "MT001",
        &[
            "SELECT mill.complete(ARRAY[{running}], ARRAY['{token}']::uuid[], pg_current_xact_id(), NULL, ARRAY[1]::bigint[], ARRAY[NULL]::jsonb[])",
            "SELECT mill.complete_with_proof({running}, encode(sha256(uuid_send('{token}') || xid8send(pg_current_xact_id())), 'hex'), pg_current_xact_id(), 1, NULL)",
            "SELECT mill.complete(ARRAY[current_setting('mill.task_id')::bigint], ARRAY[gen_random_uuid()]::uuid[], NULL, NULL, ARRAY[1]::bigint[], ARRAY[NULL]::jsonb[])",
            "SELECT mill.complete(ARRAY[{waiting}], ARRAY[gen_random_uuid()]::uuid[], pg_current_xact_id(), NULL, ARRAY[1]::bigint[], ARRAY[NULL]::jsonb[])",
            "SELECT mill.complete(ARRAY[{running}]::bigint[], ARRAY['{token}']::uuid[], pg_current_xact_id(), NULL, NULL, NULL)",
        ],
    ),
    ("2D000", &["DO $$ BEGIN COMMIT; END $$", "DO $$ BEGIN ROLLBACK; END $$"]),
    // The next task of the reader has a session without what these leave.
    (
        "ok",
        &[
            "SET search_path = mine",
            "SET statement_timeout = 1",
            "SELECT set_config('mill.task_id', '{waiting}', false)",
            "CREATE TEMP TABLE tasks (id bigint)",
            "CREATE TEMP TABLE pg_roles (rolname name, rolsuper boolean)",
            "PREPARE p AS SELECT 1",
            "LISTEN mill",
            "NOTIFY mill, 'work'",
            "SELECT pg_advisory_lock(7)",
            "DECLARE c CURSOR WITH HOLD FOR SELECT 1",
            "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
            "SET default_transaction_read_only = on",
            "SET application_name = 'pgmill worker'",
            "CREATE FUNCTION mine.pg_advisory_unlock_all() RETURNS void LANGUAGE plpgsql AS $$ BEGIN DELETE FROM theirs.secret; END $$; SET search_path = mine, pg_catalog",
            "CREATE FUNCTION mine.pg_current_xact_id() RETURNS xid8 LANGUAGE sql AS $$ SELECT '3'::xid8 $$; SET search_path = mine, pg_catalog",
        ],
    ),
];
