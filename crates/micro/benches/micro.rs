//! Times of the same pieces of work as the instruction counts, in ns per run and packets a second.

mod work;

use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};

fn micro(criterion: &mut Criterion) {
    for workload in work::all() {
        let mut group = criterion.benchmark_group("micro");
        group.throughput(Throughput::Elements(workload.packets));
        let mut work = workload.work;
        group.bench_function(workload.name, |bencher| {
            bencher.iter_custom(|runs| {
                let mut time = Duration::ZERO;
                for _ in 0..runs {
                    work.prepare();
                    let start = Instant::now();
                    work.run();
                    time += start.elapsed();
                }
                time
            });
        });
        group.finish();
    }
}

criterion_group!(benches, micro);
criterion_main!(benches);
