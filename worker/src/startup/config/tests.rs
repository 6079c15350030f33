use std::time::Duration;

use cli::Failure;
#[cfg(feature = "console")]
use console::WorkerConsoleFlags;
use queue::retry::FATAL_CLASSES;

use super::*;

fn decide(flags: &[&str]) -> anyhow::Result<Config> {
    Config::resolve(flags)
}

fn with_file<T>(name: &str, text: &str, then: impl FnOnce(&str) -> T) -> T {
    let path = std::env::temp_dir().join(format!("pgmill-{name}-{}.toml", std::process::id()));
    std::fs::write(&path, text).unwrap();
    let result = then(path.to_str().unwrap());
    std::fs::remove_file(&path).unwrap();
    result
}

fn layer_of(config: &Config, name: &str) -> Option<Layer> {
    config.origins.iter().find(|origin| origin.name == name).unwrap().layer
}

/// Returns the error that a file with this text causes, without the file's name, and the hint.
fn refused(text: &str) -> String {
    with_file("refused", text, |file| {
        let error = decide(&["worker", "--config", file]).unwrap_err();
        Failure::from(error).summary().replace(file, "FILE")
    })
}

#[test]
fn the_command_line_definition_is_valid() {
    Settings::command().debug_assert();
}

#[test]
fn a_variable_has_the_name_of_its_setting() {
    for setting in settings(&Settings::command()) {
        let variable = setting.get_env().unwrap().to_str().unwrap();
        let key = setting.get_id().as_str();
        assert_eq!(setting.get_long().unwrap(), key.replace('_', "-"));
        let expected = format!("PGMILL_{}", key.to_uppercase());
        // Programs that export traces have these variables in common.
        let common = key == "database_url" || variable.starts_with("OTEL_");
        assert!(variable == expected || common, "{key} is read from {variable}");
    }
}

#[test]
fn a_flag_wins_over_the_file_and_the_file_over_the_default() {
    with_file("config", "readers = 3\nheartbeat_interval = \"2s\"\n", |file| {
        let config = decide(&["worker", "--config", file, "--readers", "5"]).unwrap();
        let Settings { readers, heartbeat_interval, .. } = config.settings;
        assert_eq!((readers, heartbeat_interval.0), (5, Duration::from_secs(2)));
        assert_eq!(layer_of(&config, "readers"), Some(Layer::Arguments));
        assert_eq!(layer_of(&config, "heartbeat_interval"), Some(Layer::File));
        assert_eq!(layer_of(&config, "poll_interval"), None);
        assert!(config.on_command_line("readers") && !config.on_command_line("heartbeat_interval"));
    });
}

/// Every setting can be set in the file, to its default or to a value of the right type.
#[test]
fn every_setting_has_a_key_in_the_file() {
    let values = |setting: &Arg| match setting.get_value_names().map(|names| names[0].as_str()) {
        _ if !setting.get_action().takes_values() => "true".to_owned(),
        Some("URL") if setting.get_id() == "console_trace_url" => {
            "\"https://x/{trace_id}\"".to_owned()
        }
        Some("URL") if setting.get_id() == "otlp_endpoint" => "\"http://x:4318\"".to_owned(),
        Some("URL") => "\"postgres://a@b/c\"".to_owned(),
        Some("N") => "8".to_owned(),
        Some("NAME")
            if ["console_environment", "otlp_service_name"]
                .contains(&setting.get_id().as_str()) =>
        {
            "\"x\"".to_owned()
        }
        Some("NAMES" | "NAME" | "CODES") => "[\"1\", \"2\"]".to_owned(),
        // At least three times the heartbeat interval.
        Some("DURATION") if setting.get_id() == "orphan_timeout" => "\"60s\"".to_owned(),
        Some("DURATION") => "\"1.2s\"".to_owned(),
        Some("ADDR") => "\"127.0.0.1:1\"".to_owned(),
        Some("FORMAT") => "\"text\"".to_owned(),
        Some("FILE" | "FILTER") => "\"x\"".to_owned(),
        Some("PATH") => "\"/x\"".to_owned(),
        Some("COLOR") => "\"red\"".to_owned(),
        Some("KEY=VALUE,…") => "[\"a=b\", \"c=d\"]".to_owned(),
        Some("SAMPLER") => "\"always_on\"".to_owned(),
        Some("RATIO") => "0.5".to_owned(),
        other => panic!("no example of {other:?}"),
    };
    for setting in settings(&Settings::command()) {
        let (key, value) = (setting.get_id(), values(setting));
        with_file(&format!("key-{key}"), &format!("{key} = {value}\n"), |file| {
            let config = decide(&["worker", "--config", file]).unwrap();
            assert_eq!(layer_of(&config, key.as_str()), Some(Layer::File), "{key}");
            let shown = &config.origins.iter().find(|it| it.name == key.as_str()).unwrap().value;
            let written = value.replace(['"', '[', ']', ' '], "");
            let secret = value.contains("://");
            assert_eq!(*shown, if secret { "(set)".to_owned() } else { written }, "{key}");
        });
    }
}

#[test]
fn an_error_in_the_file_names_place_and_key() {
    for (text, expected) in [
        ("reders = 3", "FILE:1:1: unknown key \"reders\" (Did you mean readers?)"),
        ("\nprint_config = true", "FILE:2:1: unknown key \"print_config\""),
        ("readers = \"3\"", "FILE:1:11: readers must be an integer"),
        ("no_scheduler = 1", "FILE:1:16: no_scheduler must be true or false"),
        ("queues = \"a\"", "FILE:1:10: queues must be an array of strings"),
        ("queues = []", "FILE:1:10: queues is empty; omit the key instead"),
        ("queues = [\"a\", \"b,c\"]", "FILE:1:10: queues has the invalid value \"b,c\": a queue"),
        ("database_url = 1", "FILE:1:16: database_url must be a string"),
        ("readers = 0", "FILE:1:11: readers has the invalid value \"0\": 0 is not in 1..=1000"),
        ("log_format = \"xml\"", "FILE:1:14: log_format has the invalid value \"xml\": use one"),
        ("poll_interval = \"2s\"", "\"2s\": must be between 10ms and 1.3s"),
        ("fleet_metrics_interval = \"0s\"", "\"0s\": must be at least 100ms"),
        ("heartbeat_interval = \"1m\"", "orphan_timeout (30s) must be at least three times"),
        ("readers = 1\nreaders = 2", "FILE:2:1: duplicate key"),
        ("[run_as.etl]\nurk = \"x\"", "FILE:2:1: unknown field `urk`, expected one of"),
        ("[run_as.etl]", "run_as.etl needs exactly one of url, url_file and url_env"),
    ] {
        let error = refused(text);
        assert!(error.contains(expected), "{text}: {error}");
    }
    for (text, expected) in [
        ("database_url = \"postgres://u:secret@h/d", "FILE:1:"),
        ("[run_as.a]\nurl = postgres://u:secret@h/d", "FILE:2:"),
        ("[run_as]\na = \"postgres://u:secret@h/d\"", "FILE:2:5: invalid type, expected struct"),
        ("[destinations.x]\nurl = \"https://u/secret\" x", "FILE:2:"),
    ] {
        let error = refused(text);
        assert!(error.contains(expected) && !error.contains("secret"), "{text}: {error}");
    }
    // Even if a flag overrides the value.
    with_file("overridden", "readers = 0", |file| {
        assert!(decide(&["worker", "--config", file, "--readers=3"]).is_err());
    });
}

#[cfg(feature = "console")]
#[test]
fn console_settings_come_from_flags_and_file() {
    assert!(decide(&["worker", "--console-read-only"]).unwrap().settings.console.is_none());
    let text =
        "console = \"127.0.0.1:1\"\nconsole_base_path = \"/x/\"\nconsole_allow_host = [\"a\"]\n";
    with_file("console", text, |file| {
        let flags = ["worker", "--config", file, "--console-allow-host", "b,c"];
        let settings = decide(&flags).unwrap().settings;
        let WorkerConsoleFlags(flags) = settings.console_flags;
        assert_eq!((settings.console.unwrap().port(), &*flags.base_path), (1, "/x"));
        assert_eq!((flags.allow_host, flags.read_only), (vec!["b".into(), "c".into()], false));
    });
    let text = "console = \"127.0.0.1:1\"\nconsole_tls_cert = \"c\"\nconsole_tls_key = \"k\"\nconsole_behind_proxy = true\n";
    with_file("console-tls", text, |file| {
        let given = ["worker", "--config", file, "--console-tls-key=l", "--console-tls-cert=d"];
        for (given, cert, key) in [(&given[..3], "c", "k"), (&given[..], "d", "l")] {
            let WorkerConsoleFlags(flags) = decide(given).unwrap().settings.console_flags;
            assert_eq!((flags.tls_cert, flags.tls_key), (Some(cert.into()), Some(key.into())));
            assert!(flags.behind_proxy);
        }
    });
    // The console reports a certificate without a key.
    with_file("console-cert", "console_tls_cert = \"c\"\n", |file| {
        assert!(decide(&["worker", "--config", file]).is_ok());
    });
    with_file("no-path", "console_base_path = \"x\"\n", |file| {
        assert!(decide(&["worker", "--config", file]).is_err());
    });
}

#[cfg(not(feature = "console"))]
#[test]
fn a_worker_without_the_console_refuses_its_flag() {
    let bind = |flags: &[&str]| {
        let observer = std::sync::Arc::new(|_| ());
        crate::startup::console::bind(&decide(flags).unwrap().settings, observer)
    };
    assert!(bind(&["worker"]).unwrap().is_none());
    let error = bind(&["worker", "--console", "127.0.0.1:1"]).err().unwrap();
    assert!(error.to_string().contains("without the web console"), "{error}");
}

#[test]
fn help_shows_the_defaults_that_apply() {
    let settings = decide(&["worker"]).unwrap().settings;
    assert_eq!(settings.fatal_sqlstates, FATAL_CLASSES);
    let help = Settings::command().term_width(1000).render_help().to_string();
    for default in [
        settings.readers.to_string(),
        settings.heartbeat_interval.to_string(),
        settings.poll_interval.to_string(),
        FATAL_CLASSES.join(","),
    ] {
        assert!(help.contains(&format!("[default: {default}]")), "{default}: {help}");
    }
}

#[test]
fn settings_that_contradict_each_other_are_refused() {
    for flags in [
        ["worker", "--heartbeat-interval=20s"],
        ["worker", "--readers=0"],
        ["worker", "--poll-interval=-1s"],
        ["worker", "--queues=a b"],
        ["worker", "--fleet-metrics-interval=0s"],
        ["worker", "--fatal-sqlstates=42p01"],
        ["worker", "--shutdown-timeout=soon"],
    ] {
        assert!(decide(&flags).is_err(), "{flags:?}");
    }
}

#[test]
fn a_connection_string_and_its_file_are_one_setting_without_the_string() {
    let text = "database_url = \"postgres://a:secret@b/c\"\ntask_url_file = \"f\"\n";
    with_file("urls", text, |file| {
        let flags = ["worker", "--config", file, "--task-url", "postgres://a:secret@b/c"];
        let config = decide(&flags).unwrap();
        assert!(matches!(config.database, Some(ConnectionSource::Text(_))));
        assert!(matches!(config.task, Some(ConnectionSource::Text(_))));
        let shown = |name: &str| config.origins.iter().any(|origin| origin.name == name);
        assert!(shown("database_url") && !shown("database_url_file"));
        assert!(shown("task_url") && !shown("task_url_file"));
        assert!(config.origins.iter().all(|origin| !origin.value.contains("secret")));
    });
}
