-- Idempotency keys of requests.
--
-- A program that repeats a request after a lost answer sends the same key, and gets the stored answer
-- instead of a second effect. The key commits together with the effects of the request. For keys of
-- tasks, which are unique among live tasks only, see mill.dedup_keys.

CREATE TABLE IF NOT EXISTS mill.idempotency_keys (
    login text NOT NULL DEFAULT session_user,
    caller text NOT NULL,
    key text NOT NULL CONSTRAINT idempotency_key_length CHECK (octet_length(key) BETWEEN 1 AND 255),
    created_at timestamptz NOT NULL DEFAULT now(),
    request text NOT NULL,
    answer jsonb,
    PRIMARY KEY (login, caller, key)
);
COMMENT ON TABLE mill.idempotency_keys IS
    'Requests with an idempotency key, and their answers. Workers delete rows that are older than a day';
COMMENT ON COLUMN mill.idempotency_keys.caller IS
    'User on whose behalf the program sent the request; empty if there is none';
COMMENT ON COLUMN mill.idempotency_keys.request IS 'SHA-256 of the request';
COMMENT ON COLUMN mill.idempotency_keys.answer IS
    'Answer to the request; null only within the transaction of the request';
-- For mill.prune_idempotency_keys.
CREATE INDEX IF NOT EXISTS idempotency_keys_age ON mill.idempotency_keys (created_at);

CREATE OR REPLACE FUNCTION mill.begin_request(caller text, key text, request text) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    hash CONSTANT text := encode(sha256(convert_to(request, 'UTF8')), 'hex');
    earlier mill.idempotency_keys;
BEGIN
    -- Waits for a concurrent request with the same key, and then finds its row.
    INSERT INTO mill.idempotency_keys (caller, key, request) VALUES (caller, key, hash) ON CONFLICT DO NOTHING;
    IF FOUND THEN
        RETURN NULL;
    END IF;
    SELECT k.* INTO earlier FROM mill.idempotency_keys k
        WHERE k.login = session_user AND k.caller = begin_request.caller AND k.key = begin_request.key;
    IF earlier.request IS DISTINCT FROM hash THEN
        RAISE EXCEPTION 'the idempotency key "%" belongs to another request', key USING ERRCODE = '22023',
            HINT = 'Use a new key for each request, and the same key only to repeat a request.';
    END IF;
    RETURN earlier.answer;
END
$$;
COMMENT ON FUNCTION mill.begin_request IS
    'Registers a request under an idempotency key; null. If the same request was answered before, returns its answer. '
    'Raises an error if the key belongs to another request. The key is valid for a day, and for this login and caller';
GRANT EXECUTE ON FUNCTION mill.begin_request TO mill_producer, mill_operator;

CREATE OR REPLACE FUNCTION mill.finish_request(caller text, key text, answer jsonb) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    UPDATE mill.idempotency_keys k SET answer = finish_request.answer
        WHERE k.login = session_user AND k.caller = finish_request.caller AND k.key = finish_request.key
            AND k.answer IS NULL
$$;
COMMENT ON FUNCTION mill.finish_request IS
    'Stores the answer to a request that mill.begin_request has registered in the same transaction';
GRANT EXECUTE ON FUNCTION mill.finish_request TO mill_producer, mill_operator;
