use std::process::Command;

use clap::Parser;
use innkeeper_room::ledger::router::Policy;
use innkeeper_room::{Millis, Role, Settings};

use super::*;

#[derive(Debug, Parser)]
struct Worker {
    #[command(flatten)]
    node: NodeArgs,
    #[command(flatten)]
    engine: EngineArgs,
}

#[derive(Debug, Parser)]
struct Tool {
    #[command(subcommand)]
    command: ToolCommand,
}

#[derive(Debug, clap::Subcommand)]
#[expect(clippy::large_enum_variant, reason = "one is made per process")]
enum ToolCommand {
    Up {
        #[command(flatten)]
        settings: SettingsArgs,
        #[arg(long)]
        config: Option<PathBuf>,
        #[arg(long)]
        quiet: bool,
    },
    Ps,
}

fn worker(args: &[&str]) -> Result<Worker, ConfigError> {
    parse_from(["worker"].iter().chain(args))
}

fn file(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

#[test]
fn the_file_goes_before_defaults_and_flags_before_the_file() {
    let file = file("progress-ttl-ms = 2000\npermits = 9\nengine = 'mock'\netcd = ['http://a:1', 'http://b:2']\n");
    let path = file.path().to_str().unwrap();
    let parsed = worker(&["--config", path, "--permits", "11"]).unwrap();
    let config = parsed.node.resolve(Role::Decode).unwrap();
    assert_eq!(
        config.settings,
        Settings {
            permits: 11,
            ..Settings::from_ttl(Millis(2000))
        }
    );
    assert_eq!(config.store.endpoints, ["http://a:1", "http://b:2"]);
    assert_eq!(parsed.engine.resolve().unwrap().kind, EngineKind::Mock);
}

#[test]
fn subcommands_read_the_file_too() {
    let file = file("grace_ms = 300\nquiet = true\n");
    let args = [
        "tool".into(),
        "up".into(),
        format!("--config={}", file.path().display()),
    ];
    let ToolCommand::Up { settings, quiet, .. } = parse_from::<Tool, _>(args).unwrap().command else {
        panic!("up was asked for")
    };
    assert_eq!((settings.grace_ms, quiet), (Some(300), true));
    assert!(matches!(
        parse_from::<Tool, _>(["tool", "ps"]).unwrap().command,
        ToolCommand::Ps
    ));
}

#[test]
fn what_is_wrong_is_named_and_ends_with_64() {
    let unknown = file("progress-ttl = 5\n");
    let nested = file("[settings]\nx = 1\n");
    let table = file("[permits]\nx = 1\n");
    let unreadable = file("permits = 'many'\n");
    let broken = file("permits = \n");
    let with = |file: &tempfile::NamedTempFile| worker(&["--config", file.path().to_str().unwrap()]);
    let cases = [
        (worker(&["--permits", "many"]), "--permits"),
        (worker(&["--perimts", "5"]), "--perimts"),
        (worker(&["--engine", "magic"]), "--engine"),
        (worker(&["--http", "localhost"]), "--http"),
        (
            with(&unknown),
            "`progress-ttl` is no setting; did you mean `progress-ttl-ms`?",
        ),
        (with(&nested), "`settings` is no setting"),
        (with(&table), "`permits` is a table"),
        (with(&unreadable), "--permits"),
        (with(&broken), "is not TOML"),
        (worker(&["--config", "/does/not/exist"]), "cannot be read"),
    ];
    for (result, expected) in cases {
        let error = result.unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
        assert_eq!(exit_code(&error), 64, "{error}");
    }
    assert_eq!(exit_code(&worker(&["--help"]).unwrap_err()), 0);
}

#[test]
fn what_cannot_work_is_refused_on_resolving() {
    let cases: [(&[&str], &str); 10] = [
        (&["--etcd-user", "me"], "--etcd-password is missing"),
        (&["--etcd-key", "k.pem"], "--etcd-cert is missing"),
        (&["--http", "0.0.0.0:0"], "--advertise-host is missing"),
        (&["--etcd", "localhost:2379"], "--etcd = localhost:2379"),
        (&["--log", "a=b=c"], "--log"),
        (&["--otlp", "collector"], "--otlp = collector"),
        (&["--otlp=http://c:1", "--trace-ratio=1.5"], "--trace-ratio = 1.5"),
        (&["--otlp=http://c:1", "--otlp-headers=a"], "--otlp-headers = a"),
        (&["--jaeger-url", "javascript:alert(1)"], "--jaeger-url = javascript:"),
        (&["--advertise-host", "http://x"], "--advertise-host = http://x"),
    ];
    for (args, expected) in cases {
        let error = worker(args).unwrap().node.resolve(Role::Prefill).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
        assert_eq!(exit_code(&error), 64);
    }
    for args in [["--kv-pages", "0"], ["--mock-kv-bytes-per-token", "3"]] {
        assert!(
            worker(&args)
                .unwrap()
                .engine
                .resolve()
                .unwrap_err()
                .to_string()
                .contains(args[0])
        );
    }
}

#[test]
fn resolved_values_become_arguments_again() {
    let given = worker(&[
        "--name=-odd name",
        "--http=0.0.0.0:9000",
        "--advertise-host=fe80::1",
        "--etcd=http://a:1,http://b:2",
        "--etcd-user=u",
        "--etcd-password=p",
        "--progress-ttl-ms=1000",
        "--log=debug",
        "--log-format=json",
        "--otlp=http://c:4317",
        "--otlp-protocol=http",
        "--trace-ratio=0.25",
        "--jaeger-url=http://j:16686",
        "--engine=mock",
        "--model=/m.gguf",
        "--context=99",
        "--drain-timeout-ms=7",
    ])
    .unwrap();
    let node = given.node.resolve(Role::Prefill).unwrap();
    let engine = given.engine.resolve().unwrap();
    assert_eq!(node.advertise(([0, 0, 0, 0], 5).into()), "[fe80::1]:5");
    let args: Vec<String> = node.to_args().into_iter().chain(engine.to_args()).collect();
    assert!(!args.iter().any(|arg| arg.contains("password")));
    let again: Worker = parse_from(["worker".to_owned()].into_iter().chain(args)).unwrap();
    let mut expected = node.clone();
    expected.store.user = None;
    assert_eq!(again.node.resolve(Role::Prefill).unwrap(), expected);
    assert_eq!(again.engine.resolve().unwrap(), engine);
    assert_eq!(node.store.to_env()[1], ("INNKEEPER_ETCD_PASSWORD", "p".to_owned()));
    let headers = worker(&["--otlp=http://c:1", "--otlp-headers=a=s3cret,b=2"]).unwrap();
    let telemetry = headers.node.resolve(Role::Prefill).unwrap().telemetry;
    assert!(!format!("{:?} {:?}", telemetry, telemetry.to_args()).contains("s3cret"));
    assert_eq!(
        telemetry.to_env(),
        [("INNKEEPER_OTLP_HEADERS", "a=s3cret,b=2".to_owned())]
    );
    assert!(!format!("{node:?}").contains("\"p\""), "the password is not printed");
}

#[test]
fn every_flag_says_its_default() {
    use clap::CommandFactory;
    let command = Worker::command();
    for arg in command
        .get_arguments()
        .filter(|arg| arg.get_long().is_some_and(|long| long != "config"))
    {
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        assert!(
            help.contains("[default: "),
            "--{} does not say its default: {help}",
            arg.get_id()
        );
    }
}

/// The environment belongs to a process, so a process is started for it: this test again, with the variables set.
#[test]
fn the_environment_goes_before_the_file() {
    if std::env::var_os("INNKEEPER_PERMITS").is_some() {
        let config = worker(&["--hello-window", "3"])
            .unwrap()
            .node
            .resolve(Role::Router)
            .unwrap();
        assert_eq!(
            (
                config.settings.permits,
                config.settings.max_epochs,
                config.settings.hello_window
            ),
            (21, 6, 3)
        );
        return;
    }
    let file = file("permits = 20\nmax-epochs = 6\nhello-window = 2\n");
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "config::tests::the_environment_goes_before_the_file"])
        .env("INNKEEPER_CONFIG", file.path())
        .env("INNKEEPER_PERMITS", "21")
        .output()
        .unwrap();
    assert!(status.status.success(), "{}", String::from_utf8_lossy(&status.stdout));
}

#[test]
fn the_key_of_operators_is_handed_on_and_never_shown() {
    let config = worker(&["--admin-key", "open-sesame", "--recorder-dir", "none"]).unwrap();
    let config = config.node.resolve(Role::Router).unwrap();
    assert!(config.run.admin_key.as_ref().is_some_and(|key| key.is("open-sesame")));
    assert!(!format!("{config:?}").contains("sesame"));
    assert!(!config.to_args().concat().contains("sesame"));
    assert_eq!(config.run.to_env(), [("INNKEEPER_ADMIN_KEY", "open-sesame".to_owned())]);
    assert_eq!(config.run.recorder.dir, None);
    assert!(config.to_args().contains(&"--recorder-dir=none".to_owned()));
    let none = worker(&["--admin-key", ""])
        .unwrap()
        .node
        .resolve(Role::Router)
        .unwrap();
    assert_eq!(none.run.admin_key, None, "an empty variable is none");
}

#[test]
fn policies_are_read_by_name_for_each_role_and_a_wrong_one_is_told_what_there_is() {
    let parsed = worker(&["--prefill-policy=cache_aware", "--decode-policy", "power_of_two"]).unwrap();
    let config = parsed.node.resolve(Role::Router).unwrap();
    let policies = config.run.policies;
    assert_eq!(
        (policies.prefill, policies.decode),
        (Policy::CacheAware, Policy::PowerOfTwo)
    );
    let again = worker(&config.to_args().iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
    assert_eq!(again.node.resolve(Role::Router).unwrap().run.policies, policies);
    let error = worker(&["--prefill-policy=fastest"]).unwrap_err().to_string();
    assert!(
        error.contains("`fastest` is no policy") && error.contains("prefix_hash"),
        "{error}"
    );
}

#[test]
fn an_engine_next_door_is_configured_and_becomes_arguments_again() {
    for args in [
        &["--engine=vllm", "--engine-url=http://127.0.0.1:8100"][..],
        &[
            "--engine=vllm",
            "--engine-url=http://a:1,http://[::1]:2",
            "--engine-kv-lease=6",
            "--engine-restart=exec: systemctl restart vllm",
            "--served-model-name=m",
            "--model=/models/m",
        ],
        &["--engine=vllm", "--engine-url=http://a:1", "--engine-cmd=vllm serve m"],
        &["--engine=vllm", "--model=/models/m", "--engine-restart=probe"],
    ] {
        let engine = worker(args).unwrap().engine.resolve().unwrap();
        let again = engine.to_args();
        let again: Vec<&str> = again.iter().map(String::as_str).collect();
        assert_eq!(worker(&again).unwrap().engine.resolve().unwrap(), engine, "{args:?}");
        assert_eq!(
            engine.of_worker(0).remote.unwrap().urls.len(),
            engine.remote.unwrap().urls.len().min(1)
        );
    }
}

#[test]
fn what_makes_no_sense_for_an_engine_next_door_is_refused_by_name() {
    for (args, named) in [
        (&["--engine=vllm", "--engine-url=ftp://a:1"][..], "--engine-url"),
        (&["--engine=vllm", "--engine-url=http://a"], "--engine-url"),
        (&["--engine=vllm", "--engine-kv-lease=0"], "--engine-kv-lease"),
        (&["--engine=vllm", "--engine-restart=reboot"], "--engine-restart"),
        (&["--engine=vllm", "--engine-restart=child"], "--engine-restart"),
        (
            &["--engine=vllm", "--engine-cmd=x", "--engine-restart=none"],
            "--engine-restart",
        ),
        (&["--engine=mock", "--engine-url=http://a:1"], "--engine-url"),
        (&["--engine=mock", "--engine-cmd=x"], "--engine-cmd"),
        (&["--engine-restart=probe"], "--engine-restart"),
        (&["--engine-kv-lease=6"], "--engine-kv-lease"),
    ] {
        let error = worker(args).unwrap().engine.resolve().unwrap_err().to_string();
        assert!(error.contains(named), "{args:?}: {error}");
    }
    let two = worker(&["--engine=vllm", "--engine-url=http://a:1,http://b:1"]).unwrap();
    let two = two.engine.resolve().unwrap();
    assert!(two.check_workers(2).is_ok() && two.check_workers(1).is_err() && two.check_workers(3).is_err());
    let mut settings = innkeeper_room::Settings::default();
    two.fit(&mut settings);
    assert_eq!(settings.prefix_cache_percent, 0, "the engine has one of its own");
}
