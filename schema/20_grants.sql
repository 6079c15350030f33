-- Privileges of PUBLIC and of the roles. The transaction ends here.

-- PUBLIC may complete a claim whose token the caller knows, and nothing else.
GRANT USAGE ON SCHEMA mill TO PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA mill FROM PUBLIC;
REVOKE ALL ON ALL ROUTINES IN SCHEMA mill FROM PUBLIC;
GRANT EXECUTE ON FUNCTION mill.complete TO PUBLIC;

GRANT SELECT, INSERT, UPDATE, DELETE
    ON mill.tasks, mill.workers, mill.cancel_requests, mill.dedup_keys, mill.progress TO mill_worker;
GRANT SELECT, INSERT ON mill.attempts, mill.worker_starts TO mill_worker;
GRANT SELECT ON mill.queues, mill.settings, mill.schema_version, mill.queue_status, mill.running,
    mill.priorities, mill.priority_status, mill.groups, mill.limits, mill.limit_status TO mill_worker;
GRANT EXECUTE ON FUNCTION mill.fail, mill.release_claim, mill.reclaim, mill.record_attempt, mill.live_sessions,
    mill.prepare_history, mill.prune, mill.backends, mill.first_state, mill.has_group_permit, mill.release_permits,
    mill.grant_permits, mill.grant_waiting_permits, mill.reconcile_limits, mill.reserved_readers, mill.advance_run,
    mill.run_is_cancelled, mill.active_period, mill.resolve_local_time, mill.lock_due_schedules, mill.tick,
    mill.tick_trigger, mill.log_reclaimed, mill.put_schedule, mill.remove_schedules, mill.prune_schedule_log
    TO mill_worker;
GRANT SELECT, INSERT, DELETE ON mill.schedule_declaration_errors TO mill_worker, mill_operator;
GRANT SELECT ON mill.schedules, mill.schedule_status TO mill_worker;
GRANT SELECT, INSERT ON mill.run_events TO mill_worker;
GRANT SELECT (id, state, cancelled_at) ON mill.runs TO mill_worker;

GRANT EXECUTE ON FUNCTION mill.enqueue, mill.enqueue_many, mill.submit, mill.start_run, mill.add_run_task,
    mill.profile TO mill_producer;
GRANT SELECT ON mill.my_profiles TO mill_producer;
GRANT SELECT ON mill.settings, mill.schema_version TO mill_producer;

GRANT SELECT ON ALL TABLES IN SCHEMA mill TO mill_viewer;
-- The token of a running task allows its completion, and the key of a profile allows its use: no role can
-- read either. Statements and their output are readable through the visible_* views.
DO $$
DECLARE
    kept record;
    open text;
BEGIN
    FOR kept IN SELECT * FROM (VALUES
        ('tasks', ARRAY['token'], ARRAY['statement', 'params']),
        ('attempts', ARRAY['token'],
            ARRAY['statement', 'params', 'notices', 'result', 'plan', 'message', 'detail', 'hint', 'context']),
        ('job_tasks', '{}', ARRAY['statement', 'params']),
        ('run_tasks', '{}', ARRAY['statement', 'params', 'result', 'message']),
        ('run_events', '{}', ARRAY['result', 'message']),
        ('progress', '{}', ARRAY['percent', 'message', 'notices']),
        ('runs', '{}', ARRAY['params']),
        ('schedules', '{}', ARRAY['params', 'definition']),
        ('schedule_log', '{}', ARRAY['message']),
        ('profiles', ARRAY['key'], '{}')) AS t(name, from_all, from_viewers)
    LOOP
        SELECT string_agg(quote_ident(a.attname), ', ') INTO open FROM pg_attribute a
            WHERE a.attrelid = format('mill.%I', kept.name)::regclass AND a.attnum > 0 AND NOT a.attisdropped
                AND a.attname <> ALL (kept.from_all || kept.from_viewers);
        EXECUTE format('REVOKE SELECT ON mill.%I FROM mill_viewer', kept.name);
        EXECUTE format('GRANT SELECT (%s) ON mill.%I TO mill_viewer', open, kept.name);
        IF kept.from_viewers <> '{}' THEN
            EXECUTE format('GRANT SELECT (%s) ON mill.%I TO mill_operator',
                array_to_string(kept.from_viewers, ', '), kept.name);
        END IF;
    END LOOP;
END
$$;
GRANT EXECUTE ON FUNCTION mill.sees_statements TO mill_viewer, mill_worker;
GRANT EXECUTE ON FUNCTION mill.durations_of, mill.message_pattern, mill.failure_groups TO mill_viewer;
GRANT EXECUTE ON FUNCTION mill.why(bigint), mill.why(bigint, text), mill.job_definition, mill.upstream,
    mill.downstream, mill.live_sessions, mill.backends, mill.reserved_readers,
    mill.active_period, mill.resolve_local_time, mill.is_active, mill.schedule_test,
    mill.should_fire, mill.evaluate_trigger, mill.blocking_run, mill.measure_query, mill.scale_hint TO mill_viewer;

GRANT EXECUTE ON FUNCTION mill.cancel, mill.retry, mill.pause, mill.resume, mill.share_commits,
    mill.drain, mill.set_max_running, mill.set_rate, mill.set_group, mill.set_active_period,
    mill.drop_group, mill.set_weights, mill.set_reserved_capacity, mill.set_job, mill.enable_job, mill.set_dependency,
    mill.drop_dependency, mill.cancel_run, mill.restart_run, mill.retry_run_task, mill.set_schedule,
    mill.put_schedule, mill.remove_schedules, mill.enable_schedule, mill.adjust_schedule, mill.run_now
    TO mill_operator;
GRANT UPDATE ON mill.settings TO mill_operator;

COMMIT;
