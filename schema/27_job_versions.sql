-- Versions of jobs: what each change of a definition changed.
--
-- A version also says back to which version it can be compared.

CREATE TABLE IF NOT EXISTS mill.job_versions (
    job mill.label NOT NULL REFERENCES mill.jobs ON DELETE CASCADE,
    version integer NOT NULL,
    definition jsonb NOT NULL,
    changed_at timestamptz NOT NULL,
    changed_by text NOT NULL,
    PRIMARY KEY (job, version)
);
COMMENT ON TABLE mill.job_versions IS
    'Definitions of jobs: up to 50 versions of each job, the current version included';
COMMENT ON COLUMN mill.job_versions.definition IS 'Result of mill.job_definition';

CREATE OR REPLACE VIEW mill.visible_job_versions AS
    SELECT v.job, v.version, v.changed_at, v.changed_by,
        CASE WHEN (SELECT mill.sees_statements()) THEN v.definition
            ELSE jsonb_set(v.definition, '{tasks}', (SELECT coalesce(jsonb_agg(t.value - '{statement,params}'::text[]
                    ORDER BY t.ordinality), '[]')
                FROM jsonb_array_elements(v.definition->'tasks') WITH ORDINALITY AS t)) END AS definition
    FROM mill.job_versions v;
COMMENT ON VIEW mill.visible_job_versions IS
    'mill.job_versions for mill_viewer. Hides statements and params of tasks if settings.hide_statements is set';

CREATE OR REPLACE FUNCTION mill.record_job_version(job text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    INSERT INTO mill.job_versions (job, version, definition, changed_at, changed_by)
        SELECT j.name, j.version, mill.job_definition(j.name), j.changed_at, j.changed_by FROM mill.jobs j
        WHERE lower(j.name) = lower(record_job_version.job) AND NOT EXISTS (SELECT FROM mill.job_versions v
            WHERE v.job = j.name AND v.version = j.version)
        ON CONFLICT (job, version) DO NOTHING;
    DELETE FROM mill.job_versions v USING mill.jobs j
        WHERE lower(j.name) = lower(record_job_version.job) AND v.job = j.name AND v.version <= j.version - 50;
END
$$;
COMMENT ON FUNCTION mill.record_job_version IS
    'Stores the current version of a job in mill.job_versions unless it is there, and deletes versions that are too '
    'old. A function that changes a job calls it before the change, because a job may be older than the table, and '
    'after it';
