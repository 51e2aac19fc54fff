//! Tests of the configuration file.

use proptest::prelude::*;

use super::*;

fn error_of(text: &str) -> String {
    Config::from_toml(text, "config.toml").expect_err(text).to_string()
}

#[test]
fn the_default_file_is_the_defaults_with_and_without_its_comments() {
    assert_eq!(Config::from_toml(DEFAULT_TOML, "default").unwrap(), Config::default());
    let text = document::uncommented();
    let (keys, _) = text.split_once("[[driver.simulated]]").unwrap();
    assert_eq!(Config::from_toml(keys, "default").unwrap(), Config::default());
}

#[test]
fn the_default_file_lists_every_policy() {
    assert_eq!(Config::default().requested_policies, CardPolicies::ALL);
    let (_, comment) = DEFAULT_TOML.split_once("# Policy of a card").unwrap();
    let (comment, _) = comment.split_once("#default_policy").unwrap();
    let listed: Vec<&str> = comment.split('"').skip(1).step_by(2).collect();
    assert_eq!(listed, CardPolicy::NAMES);
}

#[test]
fn the_example_of_simulated_cards_is_read() {
    let example: Vec<&str> = DEFAULT_TOML.lines().filter_map(|line| line.strip_prefix("#   ")).collect();
    let cards = Config::from_toml(&example.join("\n"), "example").unwrap().driver.simulated;
    assert_eq!(
        cards,
        [SimulatedCards {
            uuid: Some("GPU-5e1f".into()),
            numa_node: Some(0),
            open_time: Duration::from_micros(410),
            close_time: Duration::from_micros(690),
            ramp_time: Duration::from_micros(120),
            ..SimulatedCards::free("NVIDIA H200", Bytes(143_771 * Bytes::MIB), 1)
        }]
    );
}

#[test]
fn values_are_read() {
    let config = Config::from_toml(
        "state_dir = '/run/other'\nstate_group = 'gpu-watchers'\nmax_inst = 20\nmemory_scaling = 1.5\ndefault_policy = 'soft'\n\
         unknown_driver = 'pass'\nwhole_cards = 'mediated'\nreconcile_period = '250ms'\nperiod = '20ms'\npriority = 'strict'\nthrottle = 'all'\n\
         requested_policies = 'soft, fair'\nrequested_policy_share = 0\nowner_split_count = 2\n\
         hard_caps_unavailable = 'degrade'\noom_script_timeout = '1m 30s'\nmediator_processors = 2\nadmission_wait = '30s'\n\
         supported_driver_capabilities = 'compute, utility'\nshare_by_default = true\n\
         [default_share]\nmemory = '8GiB'\ncompute = 'none'\n\
         [hami]\ndefault_memory = '0'\ndefault_compute = 30\n\
         [kubernetes]\nplacement = 'spread'\n\
         [driver]\nkind = 'simulated'\n[[driver.simulated]]\nmodel = 'A'\nmemory = '1GiB'\n",
        "config.toml",
    )
    .unwrap();
    assert_eq!(config.state_dir, Path::new("/run/other"));
    assert_eq!(config.state_group, "gpu-watchers");
    assert_eq!(config.max_inst, 20);
    assert_eq!(config.unknown_driver, UnknownDriver::Pass);
    assert_eq!(config.whole_cards, WholeCards::Mediated);
    assert_eq!(config.reconcile_period, Duration::from_millis(250));
    assert_eq!(config.oom_script_timeout, Duration::from_secs(90));
    assert!((config.mediator_processors - 2.0).abs() < f64::EPSILON);
    assert_eq!(config.period, Period::Us(20_000));
    assert_eq!(config.admission_wait, AdmissionWait::AnyTenant(Duration::from_secs(30)));
    assert_eq!((config.priority, config.throttle), (PriorityMode::Strict, Throttle::All));
    assert_eq!(config.hard_caps_unavailable, HardCapsUnavailable::Degrade);
    assert_eq!(config.memory_scaling.apply(Bytes(1000)), Bytes(1500));
    assert!(config.memory_scaling.oversubscribes());
    assert_eq!(config.default_policy, CardPolicy::Soft);
    let policies = [CardPolicy::Fair, CardPolicy::Soft, CardPolicy::Native];
    assert_eq!(policies.map(|policy| config.requested_policies.contains(policy)), [true, true, false]);
    assert_eq!((config.requested_policy_share, config.owner_split_count), (0, 2));
    assert_eq!(config.supported_driver_capabilities, DriverCapabilities::DEFAULT);
    assert_eq!(config.default_share.compute, ComputeShare::Unlimited);
    assert_eq!(config.default_share.memory, MemoryLimit::bytes(Bytes(8 * Bytes::GIB)));
    assert_eq!(config.hami.default_memory, None);
    assert_eq!(config.hami.default_compute, Percent::new(30));
    assert_eq!(config.kubernetes.placement, ClaimPlacement::Spread);
    assert_eq!(config.driver.kind, DriverKind::Simulated);
    assert_eq!(config.driver.simulated.len(), 1);
    let cards = &config.driver.simulated[0];
    assert_eq!((cards.count, cards.links, &cards.uuid, cards.numa_node), (1, SimulatedLink::System, &None, None));
    assert!(cards.gsp && cards.takes_off);
    assert_eq!(cards.open_time, Duration::from_micros(410));
}

#[test]
fn unknown_keys_are_refused_with_their_line_and_a_suggestion() {
    for (text, error) in [
        ("\nacept_env = true", "line 2: there is no key `acept_env`, did you mean `accept_env`?"),
        ("[driver]\nknd = 'auto'", "line 2: there is no key `driver.knd`, did you mean `driver.kind`?"),
        ("[drivers]\nkind = 'auto'", "line 1: there is no key `drivers`, did you mean `driver`?"),
        ("zzzzz = 1", "line 1: there is no key `zzzzz`; "),
        (
            "[[driver.simulated]]\nmodel = 'A'\nmemory = '1GiB'\n[[driver.simulated]]\nmodel = 'A'\nmemmory = '1GiB'",
            "line 6: there is no key `driver.simulated.memmory`, did you mean `driver.simulated.memory`?",
        ),
    ] {
        let shown = error_of(text);
        assert!(shown.starts_with(&format!("config.toml, {error}")), "{text:?}: {shown}");
        assert!(shown.ends_with("`egpu config default` lists all"), "{shown}");
    }
}

#[test]
fn values_out_of_range_are_refused_with_key_line_value_and_range() {
    let card = "[[driver.simulated]]\nmodel = 'A'\nmemory = '1GiB'\n";
    for (text, error) in [
        ("max_inst = 0".to_owned(), ", line 1: max_inst = 0 is not accepted; it must be a whole number from 1 to 20"),
        (
            "unknown_driver = 'ignore'".to_owned(),
            ", line 1: unknown_driver = \"ignore\" is not accepted; it must be \"refuse\" or \"pass\"",
        ),
        (
            "reconcile_period = '99ms'".to_owned(),
            ", line 1: reconcile_period = \"99ms\" is not accepted; it must be a time from \"100ms\" to \"1h\"",
        ),
        (
            "oom_script_timeout = '601s'".to_owned(),
            ", line 1: oom_script_timeout = \"601s\" is not accepted; it must be a time from \"0s\" to \"10m\"",
        ),
        ("oom_script_timeout = '-1s'".to_owned(), ", line 1: oom_script_timeout = \"-1s\" is not accepted"),
        ("oom_script_timeout = '5'".to_owned(), ", line 1: oom_script_timeout = \"5\" is not accepted"),
        (
            "period = '19ms'".to_owned(),
            ", line 1: period = \"19ms\" is not accepted; it must be \"auto\", or a time from \"20ms\" to \"500ms\"",
        ),
        (
            "admission_wait = '101s'".to_owned(),
            ", line 1: admission_wait = \"101s\" is not accepted; it must be \"leaving\", or a time from \"0s\" to \"100s\"",
        ),
        ("admission_wait = '30'".to_owned(), ", line 1: admission_wait = \"30\" is not accepted"),
        ("period = '501ms'".to_owned(), ", line 1: period = \"501ms\" is not accepted"),
        (
            "priority = 'high'".to_owned(),
            ", line 1: priority = \"high\" is not accepted; it must be \"harvest\" or \"strict\"",
        ),
        (
            "throttle = 'copy'".to_owned(),
            ", line 1: throttle = \"copy\" is not accepted; it must be \"compute\", \"compute+copy\" or \"all\"",
        ),
        (
            "whole_cards = 'pass'".to_owned(),
            ", line 1: whole_cards = \"pass\" is not accepted; it must be \"direct\" or \"mediated\"",
        ),
        (
            "hard_caps_unavailable = 'ignore'".to_owned(),
            ", line 1: hard_caps_unavailable = \"ignore\" is not accepted; it must be \"refuse\" or \"degrade\"",
        ),
        ("\nmax_inst = 21".to_owned(), ", line 2: max_inst = 21 is not accepted"),
        ("max_inst = 99999999999999999999".to_owned(), ", line 1: max_inst = 99999999999999999999 is not accepted"),
        ("device_split_count = 0".to_owned(), ", line 1: device_split_count = 0 is"),
        ("owner_split_count = 0".to_owned(), ", line 1: owner_split_count = 0 is"),
        ("requested_policy_share = 101".to_owned(), ", line 1: requested_policy_share = 101 is"),
        (
            "requested_policies = 'fair,best'".to_owned(),
            ", line 1: requested_policies = \"fair,best\" is not accepted; it must be a comma-separated list of fair, preemptive,",
        ),
        (
            "memory_scaling = 0.9".to_owned(),
            ", line 1: memory_scaling = 0.9 is not accepted; it must be a number from 1.0",
        ),
        ("pinned_memory = '0'".to_owned(), ", line 1: pinned_memory = \"0\" is not accepted; it must be \"6GiB\""),
        (
            "mediator_processors = 0.04".to_owned(),
            ", line 1: mediator_processors = 0.04 is not accepted; it must be a number from 0.05 to 64.0",
        ),
        ("mediator_processors = nan".to_owned(), ", line 1: mediator_processors = nan is"),
        ("memory_scaling = nan".to_owned(), ", line 1: memory_scaling = nan is"),
        ("memory_scaling = inf".to_owned(), ", line 1: memory_scaling = inf is"),
        (
            "state_group = 'a b'".to_owned(),
            ", line 1: state_group = \"a b\" is not accepted; it must be a group's name",
        ),
        ("state_dir = 'run'".to_owned(), ", line 1: state_dir = \"run\" is not accepted; it must be an absolute path"),
        (
            "default_policy = 'fare'".to_owned(),
            ", line 1: default_policy = \"fare\" is not accepted; it must be one of fair,",
        ),
        ("supported_driver_capabilities = 'cuda'".to_owned(), ", line 1: supported_driver_capabilities = \"cuda\" is"),
        ("[hami]\ndefault_cards = 0".to_owned(), ", line 2: hami.default_cards = 0 is"),
        ("[hami]\ndefault_compute = 101".to_owned(), ", line 2: hami.default_compute = 101 is"),
        ("[hami]\ndefault_memory = '5000'".to_owned(), ", line 2: hami.default_memory = \"5000\" is"),
        ("[kubernetes]\nplacement = 'pack'".to_owned(), ", line 2: kubernetes.placement = \"pack\" is"),
        ("[default_share]\nmemory = '0%'".to_owned(), ", line 2: default_share.memory = \"0%\" is"),
        ("[default_share]\ncompute = '50'".to_owned(), ", line 2: default_share.compute = \"50\" is"),
        ("[driver]\nkind = 'nvida'".to_owned(), ", line 2: driver.kind = \"nvida\" is"),
        (
            format!("{card}count = 65"),
            ", line 4: driver.simulated[0].count = 65 is not accepted; it must be a whole number from 1 to 64",
        ),
        (
            format!("{card}count = 60\n{card}count = 5"),
            ", line 8: driver.simulated[1].count = 5 is not accepted; it must be a whole number from 1 to 4",
        ),
        (format!("{card}uuid = 'GPU-'"), ", line 4: driver.simulated[0].uuid = \"GPU-\" is"),
        (format!("{card}links = 'sli'"), ", line 4: driver.simulated[0].links = \"sli\" is"),
        (format!("{card}numa_node = -1"), ", line 4: driver.simulated[0].numa_node = -1 is"),
        (
            "[[driver.simulated]]\nmodel = ''\nmemory = '1GiB'".to_owned(),
            ", line 2: driver.simulated[0].model = \"\" is",
        ),
        (
            "\n[[driver.simulated]]\nmodel = 'A'".to_owned(),
            ", line 2: driver.simulated[0].memory = \"\" is not accepted; it must be whole KiB from 64MiB to 1024GiB, such as",
        ),
        ("[[driver.simulated]]\nmemory = '1GiB'".to_owned(), ", line 1: driver.simulated[0].model = \"\" is"),
        (
            "[[driver.simulated]]\nmodel = 'A'\nmemory = '63MiB'".to_owned(),
            ", line 3: driver.simulated[0].memory = \"63MiB\" is",
        ),
    ] {
        let shown = error_of(&text);
        assert!(shown.starts_with(&format!("config.toml{error}")), "{text:?}: {shown}");
    }
}

#[test]
fn values_of_another_type_are_refused_with_key_line_value_and_type() {
    for (text, error) in [
        (
            "\nperiod = 100",
            ", line 2: period = 100 is not accepted; it must be text in quotation marks, such as \"100ms\"",
        ),
        (
            "max_inst = '16'",
            ", line 1: max_inst = '16' is not accepted; it must be a whole number without quotation marks, such as 16",
        ),
        ("max_inst = 1.5", ", line 1: max_inst = 1.5 is not accepted; it must be a whole number"),
        ("memory_scaling = '2'", ", line 1: memory_scaling = '2' is not accepted; it must be a number without"),
        ("accept_env = 1", ", line 1: accept_env = 1 is not accepted; it must be true or false"),
        ("driver = 'auto'", ", line 1: driver = 'auto' is not accepted; it must be a table that begins with [driver]"),
        (
            "[driver]\nsimulated = 4",
            ", line 2: driver.simulated = 4 is not accepted; it must be tables that begin with [[driver.simulated]]",
        ),
        (
            "driver.simulated = [1]",
            ", line 1: driver.simulated = [1] is not accepted; it must be tables that begin with",
        ),
        (
            "[[driver.simulated]]\nmodel = 'A'\nmemory = 1024",
            ", line 3: driver.simulated.memory = 1024 is not accepted; it must be text in quotation marks",
        ),
    ] {
        let shown = error_of(text);
        assert!(shown.starts_with(&format!("config.toml{error}")), "{text:?}: {shown}");
    }
    assert!(Config::from_toml("memory_scaling = 2", "any").unwrap().memory_scaling > MemoryScaling::NONE);
}

#[test]
fn malformed_files_are_refused_with_their_line() {
    for (text, line) in [("\n\n= 3", 3), ("a = ", 1), ("accept_env = 1", 1), ("\n[[driver.simulated]]\nmodel = 'A'", 2)]
    {
        let shown = error_of(text);
        assert!(shown.starts_with(&format!("config.toml, line {line}: ")), "{text:?}: {shown}");
    }
    assert!(error_of("[[driver.simulated]]\nmodel = 'A'").contains("memory"));
}

#[test]
fn a_named_file_must_be_there_and_a_directory_is_none() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("config.toml");
    let error = Config::load(Some(&missing)).unwrap_err();
    assert!(
        error.to_string().starts_with(&format!("cannot read the configuration file {}; ", missing.display())),
        "{error}"
    );
    assert!(std::error::Error::source(&error).is_some());
    assert!(Config::load(Some(directory.path())).is_err());
    fs::write(&missing, "max_inst = 4").unwrap();
    assert_eq!(Config::load(Some(&missing)).unwrap().max_inst, 4);
}

fn some_value() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<i64>().prop_map(|number| number.to_string()),
        any::<f64>().prop_map(|number| format!("{number:?}")),
        any::<bool>().prop_map(|value| value.to_string()),
        "[ -~]{0,12}".prop_map(|text| format!("{text:?}")),
        "[0-9]{1,4}(MiB|GiB|%)".prop_map(|text| format!("\"{text}\"")),
        Just("[]".to_owned()),
        Just("{}".to_owned()),
        Just("[{}, {model = 'A'}]".to_owned()),
    ]
}

fn some_key() -> impl Strategy<Value = String> {
    let keys = document::values(&document::EVERY_KEY, "").into_iter().map(|(key, _)| key);
    let keys: Vec<String> = keys.filter(|key| !key.contains('[')).collect();
    prop_oneof![9 => proptest::sample::select(keys), 1 => "[a-z._]{1,8}".boxed()]
}

proptest! {
    #[test]
    fn any_text_is_a_configuration_or_an_error(text in "\\PC{0,200}") {
        let _ = Config::from_toml(&text, "any");
    }

    #[test]
    fn any_keys_and_values_are_a_configuration_in_range_or_an_error(
        lines in proptest::collection::vec((some_key(), some_value()), 1..4)
    ) {
        let text: String = lines.iter().map(|(key, value)| format!("{key} = {value}\n")).collect();
        match Config::from_toml(&text, "any") {
            Ok(config) => {
                prop_assert!((1..=20).contains(&config.max_inst));
                prop_assert!((1..=1000).contains(&config.device_split_count));
                prop_assert!(config.memory_scaling >= MemoryScaling::NONE);
                prop_assert!(config.state_dir.is_absolute());
                prop_assert!(config.driver.simulated.iter().map(|cards| cards.count).sum::<u32>() <= 64);
            }
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }
}
