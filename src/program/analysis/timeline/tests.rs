use journal::format::Event;
use proptest::prelude::*;

use super::curve::Span;
use super::*;
use crate::analysis::samples::{block, record};

proptest! {
    /// However many changes are left out, the highest level and its time stay, every span's extremes are true, and the
    /// number of spans is bounded.
    #[test]
    fn a_curve_keeps_its_peak_and_its_extremes(steps in prop::collection::vec((0u64..1000, 0u64..100), 1..3000)) {
        let mut curve = Curve::new(64);
        let (mut all, mut time_ns) = (Vec::new(), 0);
        for (event, (wait, bytes)) in (0..).zip(steps) {
            time_ns += wait;
            let point = Point { event, time_ns, bytes };
            all.push(point);
            curve.push(point);
        }
        prop_assert!(curve.spans.len() <= 64);
        let most = all.iter().map(|point| point.bytes).max().unwrap();
        let first = all.iter().find(|point| point.bytes == most).unwrap();
        prop_assert_eq!(curve.peak(), Some(*first));
        let kept: Vec<Point> = curve.spans.iter().flat_map(Span::points).collect();
        prop_assert!(kept.contains(first));
        for span in &curve.spans {
            let within = &all[span.first.event as usize..=span.last.event as usize];
            prop_assert_eq!(span.lowest.bytes, within.iter().map(|point| point.bytes).min().unwrap());
            prop_assert_eq!(span.highest.bytes, within.iter().map(|point| point.bytes).max().unwrap());
        }
        prop_assert!(kept.is_sorted_by_key(|point| point.event));
        // A point that was left out had the level before it, or lies inside a span.
        let (mut level, mut inside) = (None, kept.iter().peekable());
        for point in &all {
            if inside.next_if(|next| next.event == point.event).is_some() {
                level = Some(point.bytes);
            } else {
                let joined = curve.spans.iter().any(|span| (span.first.event..span.last.event).contains(&point.event));
                prop_assert!(joined || level == Some(point.bytes));
            }
        }
    }
}

#[test]
fn around_peak_failure_and_end_every_record_is_kept() {
    let mut ledger = Ledger::default();
    let mut timeline = Timeline::new(16);
    let mut time_ns = 0;
    let mut play = |event: Event| {
        time_ns += 1000;
        let record = record(time_ns, event);
        ledger.apply(&record);
        timeline.note(&record, &ledger);
        time_ns
    };
    let (mut peak_ns, mut failed_ns) = (0, 0);
    for round in 0..20_000u64 {
        let bytes = if round == 7_000 { 1 << 30 } else { 512 + round % 64 };
        let at = play(Event::Alloc(block(1 << 20, bytes)));
        if round == 7_000 {
            peak_ns = at;
        }
        if round == 13_000 {
            failed_ns = play(Event::out_of_memory(1 << 40));
        }
        play(Event::free(block(1 << 20, bytes)));
    }
    let device = &timeline.devices[&0];
    assert!(device.live.spans.len() <= 16);
    assert_eq!(device.live.peak().unwrap().time_ns, peak_ns);
    let half = device.half;
    let kept = device.kept();
    let times: Vec<u64> = kept.iter().map(|moment| moment.record.time_ns).collect();
    for centre in [peak_ns, failed_ns] {
        for step in 0..half as u64 {
            assert!(times.contains(&(centre - step * 1000)), "{step} before");
            assert!(times.contains(&(centre + step * 1000)), "{step} after");
        }
    }
    assert_eq!(times.last(), Some(&(40_001 * 1000)));
    assert_eq!(times.len(), 2 * (2 * half + 1) + half);
    let points = device.live_points();
    let peak = points.iter().max_by_key(|point| point.bytes).unwrap();
    assert_eq!((peak.time_ns, peak.bytes), (peak_ns, 1 << 30));
    // The failure changed no level, so it has no point, but its neighbours have.
    assert!(points.iter().any(|point| point.time_ns == failed_ns - 1000));
    assert!(points.iter().any(|point| point.time_ns == failed_ns + 1000));
}

#[test]
fn a_short_job_keeps_each_record_once() {
    let mut ledger = Ledger::default();
    let mut timeline = Timeline::new(16);
    for time_ns in 1..5 {
        let record = record(time_ns, Event::Alloc(block(time_ns << 20, 512)));
        ledger.apply(&record);
        timeline.note(&record, &ledger);
    }
    let kept = timeline.devices[&0].kept();
    assert_eq!(
        kept.iter().map(|moment| moment.live).collect::<Vec<_>>(),
        [512, 1024, 1536, 2048]
    );
}
