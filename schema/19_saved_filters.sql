-- Saved filters of the console, shared by all users.

CREATE TABLE IF NOT EXISTS mill.saved_filters (
    screen text NOT NULL CONSTRAINT filtered_screen CHECK (screen IN ('tasks', 'runs')),
    name mill.label NOT NULL,
    query text NOT NULL CONSTRAINT short_query CHECK (length(query) <= 2000),
    saved_at timestamptz NOT NULL,
    saved_by text NOT NULL,
    PRIMARY KEY (screen, name)
);
COMMENT ON TABLE mill.saved_filters IS 'Saved filters of the console';
COMMENT ON COLUMN mill.saved_filters.query IS 'Query string of the screen, percent-encoded, without a leading ?';

CREATE OR REPLACE FUNCTION mill.save_filter(screen text, name text, query text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    IF (SELECT count(*) FROM mill.saved_filters f WHERE f.screen = save_filter.screen AND f.name <> save_filter.name)
        >= 50
    THEN
        RAISE EXCEPTION 'there are 50 saved filters of this screen' USING ERRCODE = '54000',
            HINT = 'Remove one of them first.';
    END IF;
    INSERT INTO mill.saved_filters (screen, name, query, saved_at, saved_by)
        VALUES (save_filter.screen, save_filter.name, save_filter.query, now(), session_user)
        ON CONFLICT (screen, name) DO UPDATE SET query = excluded.query, saved_at = excluded.saved_at,
            saved_by = excluded.saved_by;
    PERFORM mill.record_audit('save_filter', 'filter ' || save_filter.name,
        jsonb_build_object('screen', save_filter.screen, 'query', save_filter.query));
END
$$;
COMMENT ON FUNCTION mill.save_filter IS 'Saves a filter of the console, or replaces the filter of this name';
GRANT EXECUTE ON FUNCTION mill.save_filter TO mill_operator;

CREATE OR REPLACE FUNCTION mill.remove_filter(screen text, name text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    DELETE FROM mill.saved_filters f WHERE f.screen = remove_filter.screen AND f.name = remove_filter.name;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM mill.record_audit('remove_filter', 'filter ' || remove_filter.name,
        jsonb_build_object('screen', remove_filter.screen));
    RETURN true;
END
$$;
COMMENT ON FUNCTION mill.remove_filter IS 'Removes a saved filter of the console. Returns false if it does not exist';
GRANT EXECUTE ON FUNCTION mill.remove_filter TO mill_operator;
