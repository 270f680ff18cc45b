//! The formats of events and of stacks: their sums are the journal's.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use serde_json::Value;
use support::{AUTO_GROWTH, NAIVE_BEST_FIT, PASSTHROUGH, inspect};

use crate::formats::{exercise, export};

/// Events, and requested bytes of allocations and frees, by API.
fn told(journal: &Path) -> (u64, BTreeMap<String, u64>) {
    let jobs = inspect(journal);
    let apis = jobs[0]["apis"].as_array().unwrap();
    let bytes = apis.iter().map(|api| {
        let name = api["api"].as_str().unwrap().to_owned();
        (name, api["bytes"].as_u64().unwrap())
    });
    (
        jobs[0]["events"].as_u64().unwrap(),
        bytes.filter(|(_, bytes)| *bytes > 0).collect(),
    )
}

/// Rows of what the library found out, which are no events of the job.
const FINDINGS: [&str; 5] = ["measured", "process", "limit", "refused", "host_memory"];

#[test]
fn rows_add_up_to_the_journal() {
    for strategy in [PASSTHROUGH, AUTO_GROWTH] {
        let finished = exercise(strategy, 2);
        let journal = &finished.journals()[0];
        let (events, bytes) = told(journal);
        let (_folder, path) = export(journal, "csv", &[]);
        let text = std::fs::read_to_string(path).unwrap();
        let mut lines = text.lines();
        let names: Vec<&str> = lines.next().unwrap().split(',').collect();
        let column = |name: &str| names.iter().position(|known| *known == name).unwrap();
        let (event, api, requested) = (column("event"), column("api"), column("requested"));
        let (mut rows, mut sums) = (0, BTreeMap::<String, u64>::new());
        for line in lines {
            let fields: Vec<&str> = line.split(',').collect();
            assert_eq!(fields.len(), names.len(), "{line}");
            rows += u64::from(!FINDINGS.contains(&fields[event]));
            if matches!(fields[event], "alloc" | "free") {
                *sums.entry(fields[api].to_owned()).or_default() += fields[requested].parse::<u64>().unwrap();
            }
        }
        sums.retain(|_, bytes| *bytes > 0);
        assert_eq!((rows, &sums), (events, &bytes), "csv");

        let (_folder, path) = export(journal, "jsonl", &[]);
        let text = std::fs::read_to_string(path).unwrap();
        let (mut rows, mut sums) = (0, BTreeMap::<String, u64>::new());
        for line in text.lines() {
            let line: Value = serde_json::from_str(line).unwrap();
            if line["kind"] != "event" {
                continue;
            }
            rows += u64::from(!FINDINGS.iter().any(|finding| line["event"] == *finding));
            if line["event"] == "alloc" || line["event"] == "free" {
                let api = line["api"].as_str().unwrap().to_owned();
                *sums.entry(api).or_default() += line["requested"].as_u64().unwrap();
            }
        }
        sums.retain(|_, bytes| *bytes > 0);
        assert_eq!((rows, &sums), (events, &bytes), "jsonl");
    }
}

#[test]
fn formats_of_stacks_have_the_live_bytes() {
    let finished = exercise(NAIVE_BEST_FIT, 1);
    let journal = &finished.journals()[0];
    let jobs = inspect(journal);
    let live: u64 = jobs[0]["live"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|live| live["class"] != "imported" && live["class"] != "address_range")
        .map(|live| live["allocated"].as_u64().unwrap_or_else(|| panic!("{live}")))
        .sum();
    assert!(live > 0);
    let (_folder, path) = export(journal, "collapsed", &["--at", "end"]);
    let text = std::fs::read_to_string(path).unwrap();
    let weight = |line: &str| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap();
    assert_eq!(text.lines().map(weight).sum::<u64>(), live);

    let (_folder, path) = export(journal, "speedscope", &["--at", "end"]);
    let page: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let frames = page["shared"]["frames"].as_array().unwrap().len() as u64;
    let mut sum = 0;
    for profile in page["profiles"].as_array().unwrap() {
        let weights: Vec<u64> = serde_json::from_value(profile["weights"].clone()).unwrap();
        let samples: Vec<Vec<u64>> = serde_json::from_value(profile["samples"].clone()).unwrap();
        assert_eq!(weights.len(), samples.len());
        assert!(samples.iter().flatten().all(|&frame| frame < frames));
        assert_eq!(profile["endValue"].as_u64().unwrap(), weights.iter().sum::<u64>());
        sum += weights.iter().sum::<u64>();
    }
    assert_eq!(sum, live);

    let (_folder, path) = export(journal, "pprof", &["--at", "end"]);
    let mut profile = Vec::new();
    let file = std::fs::File::open(path).unwrap();
    flate2::read::GzDecoder::new(file).read_to_end(&mut profile).unwrap();
    // A message is a sequence of keys and values; field 2 is a sample, whose field 2 has the packed values.
    let mut sum = 0;
    for (field, sample) in fields(&profile).into_iter().filter(|(field, _)| *field == 2) {
        assert_eq!(field, 2);
        let values = fields(&sample).into_iter().find(|(field, _)| *field == 2).unwrap().1;
        let mut rest = &values[..];
        let values: Vec<u64> = std::iter::from_fn(|| (!rest.is_empty()).then(|| number(&mut rest))).collect();
        assert_eq!(values.len(), 4);
        sum += values[3];
    }
    assert_eq!(sum, live);
}

/// Reads a variable-length number of a protocol buffer.
fn number(bytes: &mut &[u8]) -> u64 {
    let (mut value, mut shift) = (0, 0);
    loop {
        let (&byte, rest) = bytes.split_first().expect("a number");
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return value;
        }
        shift += 7;
    }
}

/// The fields of a message that have bytes; all others are read over.
fn fields(mut message: &[u8]) -> Vec<(u64, Vec<u8>)> {
    let mut found = Vec::new();
    while !message.is_empty() {
        let key = number(&mut message);
        match key & 7 {
            0 => drop(number(&mut message)),
            2 => {
                let length = number(&mut message) as usize;
                let (value, rest) = message.split_at(length);
                found.push((key >> 3, value.to_vec()));
                message = rest;
            }
            other => panic!("wire type {other}"),
        }
    }
    found
}
