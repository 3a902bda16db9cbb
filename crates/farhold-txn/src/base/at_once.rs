//! Several futures of one task, under way at the same time.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

/// How many are under way at a time: each may have a message in the inbox of another node.
const AT_ONCE_MAX: usize = 64;

/// One of them.
pub(crate) type Work<'w, T> = Pin<Box<dyn Future<Output = T> + 'w>>;

/// Runs all of it beside each other and returns what each part gives, in their order. The first 64 begin at once, and each further part
/// when an earlier one has ended.
pub(crate) async fn all_at_once<T>(work: Vec<Work<'_, T>>) -> Vec<T> {
    let mut parts: Vec<Part<'_, T>> = work.into_iter().map(Part::Open).collect();
    poll_fn(|context| {
        let mut under_way = 0;
        for part in &mut parts {
            let Part::Open(work) = part else { continue };
            match work.as_mut().poll(context) {
                Poll::Ready(given) => *part = Part::Ended(given),
                Poll::Pending => under_way += 1,
            }
            if under_way == AT_ONCE_MAX {
                break;
            }
        }
        if under_way == 0 { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    parts.into_iter().filter_map(Part::given).collect()
}

enum Part<'w, T> {
    Open(Work<'w, T>),
    Ended(T),
}

impl<T> Part<'_, T> {
    fn given(self) -> Option<T> {
        match self {
            Self::Open(_) => None,
            Self::Ended(given) => Some(given),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farhold_fabric::Executor;
    use std::cell::Cell;

    /// Each sleeps for a time of its own. All together they take as long as the longest, not as long as the sum.
    #[test]
    fn all_take_as_long_as_the_longest() {
        let executor = Executor::virtual_time(1);
        let handle = executor.handle();
        let given = executor.run(all_at_once(
            (1..=20)
                .map(|number| {
                    let handle = handle.clone();
                    let work: Work<'_, u64> = Box::pin(async move {
                        handle.sleep_ns((21 - number) * 1_000_000).await;
                        number
                    });
                    work
                })
                .collect(),
        ));
        assert_eq!(given, (1..=20).collect::<Vec<_>>());
        assert!((20_000_000..21_000_000).contains(&handle.now_ns()), "{}", handle.now_ns());
        assert_eq!(executor.run(all_at_once(Vec::<Work<'_, ()>>::new())), []);
    }

    /// However many there are, a bounded number is under way, and all of them end.
    #[test]
    fn the_number_under_way_is_bounded() {
        let executor = Executor::virtual_time(1);
        let handle = executor.handle();
        let (now, most) = (Cell::new(0), Cell::new(0));
        let work = (0..500_u64).map(|number| {
            let (handle, now, most) = (handle.clone(), &now, &most);
            let work: Work<'_, u64> = Box::pin(async move {
                now.set(now.get() + 1);
                most.set(now.get().max(most.get()));
                // Some end at once, others after one another.
                if number % 5 != 0 {
                    handle.sleep_ns(number % 7 * 1_000).await;
                }
                now.set(now.get() - 1);
                number
            });
            work
        });
        let given = executor.run(all_at_once(work.collect()));
        assert_eq!(given, (0..500).collect::<Vec<_>>());
        assert_eq!((now.get(), most.get()), (0, AT_ONCE_MAX));
    }
}
