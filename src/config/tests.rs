use std::ffi::OsString;
use std::time::Duration;

use policy::Strategy;
use quota::Scope;

use crate::parse::duration_or_never;
use crate::table::VARIABLES;
use crate::{Config, ConfigError};

fn read(pairs: &[(&str, &str)]) -> (Config, Vec<ConfigError>) {
    Config::read(|name| {
        pairs
            .iter()
            .find(|(key, _)| *key == name)
            .map(|(_, value)| OsString::from(value))
    })
}

#[test]
fn own_variable_wins_over_paddles() {
    let (config, errors) = read(&[
        ("VRAMSHIM_STRATEGY", "autogrow"),
        ("FLAGS_allocator_strategy", "naive_best_fit"),
    ]);
    assert_eq!(config.strategy, Strategy::AutoGrowth);
    assert!(errors.is_empty());
}

#[test]
fn a_long_value_is_not_repeated_as_a_whole() {
    let long = "\u{202e}x".repeat(50_000);
    let (_, errors) = read(&[("VRAMSHIM_STRATEGY", &long)]);
    let text = errors[0].to_string();
    assert!(text.len() < 2000 && !text.contains('\u{202e}'), "{}", text.len());
}

#[test]
fn thread_local_is_left_to_paddle_but_not_ours_to_accept() {
    let (config, errors) = read(&[("FLAGS_allocator_strategy", "thread_local")]);
    assert!(errors.is_empty() && config.remarks.len() == 1);
    assert_eq!(config.strategy, Strategy::Passthrough);
    assert_eq!(read(&[("VRAMSHIM_STRATEGY", "thread_local")]).1.len(), 1);
}

#[test]
fn limits_come_from_one_variable() {
    let gib = |bytes: u64| bytes << 30;
    let limit = |pairs: &[(&str, &str)], number| {
        let (config, errors) = read(pairs);
        assert!(errors.is_empty(), "{errors:?}");
        (
            config.quota.limits.of(Some(number), "GPU-0", gib(80)),
            config.quota.scope,
        )
    };
    let own = ("VRAMSHIM_MEMORY_LIMIT", "8GiB");
    let paddles = ("FLAGS_gpu_memory_limit_mb", "4096");
    let shared = ("VRAMSHIM_ACCOUNTS", "/accounts");
    assert_eq!(limit(&[own, paddles], 0), (Some(gib(8)), Scope::Process));
    assert_eq!(limit(&[own, shared], 0), (Some(gib(8)), Scope::Group));
    assert_eq!(limit(&[paddles, shared], 0), (Some(gib(4)), Scope::Process));
    assert_eq!(limit(&[shared], 0), (None, Scope::Group));
    let inherit = ("VRAMSHIM_MEMORY_LIMIT", "inherit");
    let layers = [
        inherit,
        ("CUDA_DEVICE_MEMORY_LIMIT", "3g"),
        ("CUDA_DEVICE_MEMORY_LIMIT_1", "2048m"),
        paddles,
    ];
    assert_eq!((limit(&layers, 0).0, limit(&layers, 1).0), (Some(gib(3)), Some(gib(2))));
    assert_eq!(limit(&layers[1..3], 0).0, None, "only when asked");
    let (config, errors) = read(&[inherit]);
    assert_eq!((config.remarks.len(), errors.len()), (1, 0));
    let shown = config.quota.limits.of(Some(0), "GPU-0", gib(3));
    assert_eq!(shown, Some(gib(3)), "what the layer shows");
    let bad = ("CUDA_DEVICE_MEMORY_LIMIT_1", "x");
    assert_eq!(read(&[inherit, bad]).1[0].variable, bad.0);
}

#[test]
fn the_limit_of_a_pod_wins_and_is_a_quantity_for_all_its_processes() {
    let own = [
        ("VRAMSHIM_MEMORY_LIMIT", "80GiB"),
        ("VRAMSHIM_LIMIT_SCOPE", "process"),
        ("CUDA_MEM_LIMIT", "3g"),
    ];
    for (text, limit) in [
        ("8G", Some(8_000_000_000)),
        ("8Gi", Some(8 << 30)),
        ("0=8192Mi,1=1Gi", Some(8 << 30)),
        ("8589934592", Some(8 << 30)),
        ("12.5%", Some(10 << 30)),
        ("inherit", Some(3 << 30)),
        ("0", None),
    ] {
        let (config, errors) = read(&[&own[..], &[("VRAMSHIM_POD_LIMIT", text)]].concat());
        assert!(errors.is_empty() && config.remarks.len() == 1, "{errors:?}");
        let quota = config.quota;
        let read = (quota.limits.of(Some(0), "GPU-0", 80 << 30), quota.scope);
        assert_eq!(read, (limit, Scope::Group), "{text}");
    }
    // A half, MiB of KAI, thousandths, and what is too small to be meant.
    for text in ["0.5", "2000", "8589934592000m", "1Ki", "8g", "8 Gb i", "1=2000"] {
        let (config, errors) = read(&[("VRAMSHIM_POD_LIMIT", text)]);
        assert_eq!((errors.len(), errors[0].variable), (1, "VRAMSHIM_POD_LIMIT"), "{text}");
        assert!(config.quota.limits.is_empty());
        let said = errors[0].to_string();
        assert!(said.contains(&format!("={text:?}")) && said.contains("8Gi"), "{said}");
    }
}

#[test]
fn a_duration_is_never_or_at_least_a_millisecond() {
    assert_eq!(duration_or_never("1.5 min"), Some(Some(Duration::from_secs(90))));
    assert_eq!(duration_or_never("0"), Some(None));
    for bad in ["30", "0.1ms", "8760h", "1e30min"] {
        assert_eq!(duration_or_never(bad), None, "{bad}");
    }
}

#[test]
fn who_misspells_strictness_gets_limits_that_hold() {
    for (strict, refuses) in [("limit", true), ("limits", true), ("0", false)] {
        let (_, errors) = read(&[("VRAMSHIM_STRICT", strict), ("VRAMSHIM_MEMORY_LIMIT", "8Gx")]);
        assert_eq!(errors.last().unwrap().refuses_memory, refuses, "{strict}");
    }
}

#[test]
fn what_the_table_calls_a_default_is_what_nothing_set_gives() {
    let described = |pairs: &[(&str, &str)]| {
        let (mut config, errors) = read(pairs);
        assert!(errors.is_empty(), "{errors:?}");
        config.strategy_chosen = true;
        format!("{config:?}")
    };
    let unset = described(&[]);
    for variable in VARIABLES {
        // A variable that is skipped has no value that stands for its default, or no field of the config.
        if variable.default == "none" || variable.default.contains([' ', '<']) {
            continue;
        }
        let name = variable.name;
        assert_eq!(described(&[(name, variable.default)]), unset, "{name}");
    }
}
