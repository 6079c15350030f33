DO $$
BEGIN
    -- A task can read the number of its attempt.
    IF current_setting('mill.attempt')::integer = 1 THEN
        RAISE EXCEPTION 'today''s exchange rates are not available yet';
    END IF;
END
$$;
INSERT INTO shop.exchange_rates VALUES ('EUR', 108), ('GBP', 127), ('CHF', 113);
