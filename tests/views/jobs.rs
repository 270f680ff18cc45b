//! Real jobs under the library over the simulated GPU: the views agree with the job's own counts.

use support::{Fields, Job, STRATEGIES, client};

use super::{device, json, sum};

#[test]
fn the_views_of_a_real_job_agree_with_its_own_counts() {
    let path = client("support/clients/exercise.c", "viewed", &["libcuda.so.1"]);
    for strategy in STRATEGIES {
        let finished = Job::new(&path).strategy(strategy).args(["7", "400", "2"]).run().ok();
        let page = finished.inspect();
        let all = &page["devices"][0];
        let journal = finished.journals().remove(0);
        let views = json(&journal, &["--at", "end", "--top", "api", "--leaks"]);
        let end = device(&views, "at");
        assert_eq!(end["allocated"], all["allocated"]["current"], "{strategy:?}");
        assert_eq!(end["requested"], all["requested"]["current"], "{strategy:?}");
        let graphs = end["graphs"].number();
        assert_eq!(sum(&end["holders"], "bytes") + graphs, end["allocated"].number());
        let peak = json(&journal, &["--at", "peak", "--top", "size"]);
        assert_eq!(
            device(&peak, "at")["allocated"],
            all["allocated"]["peak"],
            "{strategy:?}"
        );
    }
}
