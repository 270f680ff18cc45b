use proptest::prelude::*;

use super::curve::Span;
use super::*;

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
