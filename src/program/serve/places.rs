//! The places of connections. If all are taken, the connection that has been silent for longest loses its place to a new one,
//! so clients that send no request do not keep others waiting.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use tokio::sync::Semaphore;
use tokio::task::AbortHandle;

/// Whether the request of a connection is there.
pub type Asked = Arc<AtomicBool>;

pub struct Places {
    free: Arc<Semaphore>,
    /// The connections whose requests were not there at the last look, the oldest first.
    silent: VecDeque<(Asked, AbortHandle)>,
}

impl Places {
    pub fn new(count: usize) -> Places {
        Places {
            free: Arc::new(Semaphore::new(count)),
            silent: VecDeque::new(),
        }
    }

    /// Begins to serve a connection once there is a place for it. The place is free again at the end.
    pub async fn serve<F>(&mut self, connection: impl FnOnce(Asked) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.silent
            .retain(|(asked, served)| !asked.load(Relaxed) && !served.is_finished());
        if self.free.available_permits() == 0
            && let Some((_, oldest)) = self.silent.pop_front()
        {
            oldest.abort();
        }
        let Ok(place) = self.free.clone().acquire_owned().await else {
            return;
        };
        let asked = Asked::default();
        let connection = connection(asked.clone());
        let served = tokio::spawn(async move {
            let _place = place;
            connection.await;
        });
        self.silent.push_back((asked, served.abort_handle()));
    }
}
