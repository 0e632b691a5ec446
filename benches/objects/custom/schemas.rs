//! What schemas cost inside one process: nanoseconds per KiB of an object.

use std::hint::black_box;
use std::time::Instant;

use kubeapi::schema::{
    Schema, StepBudget, apply_defaults, drop_forbidden_nulls, prune_unknown_fields, validate, validate_list_types,
};
use serde_json::Value;

use super::resource::{BenchResource, schema};
use crate::{ApiServerKind, Results};

const REPETITIONS: u32 = 20_000;

/// As many steps as are needed.
struct Unbounded;

impl StepBudget for Unbounded {
    fn spend(&self, _: usize) -> bool {
        true
    }
}

pub(super) fn measure(results: &mut Results) {
    let text = BenchResource::new("none.bench.dev", 0).object("v1", "measured", 1);
    let json = schema(false);
    let compiled = Schema::read(&json).expect("a schema");
    let object: Value = serde_json::from_str(&text).expect("an object");
    let kibibytes = text.len() as f64 / 1024.0;
    let mut add = |name: &str, work: &mut dyn FnMut()| {
        let began = Instant::now();
        (0..REPETITIONS).for_each(|_| work());
        let cost = began.elapsed().as_secs_f64() * 1e9 / f64::from(REPETITIONS) / kibibytes;
        results.add(ApiServerKind::Narthex, &format!("{name}, per KiB"), "ns", cost);
    };
    add("parse", &mut || drop(black_box(serde_json::from_str::<Value>(black_box(&text)))));
    add("copy", &mut || drop(black_box(object.clone())));
    let mut pruned = object.clone();
    add("prune", &mut || {
        black_box(prune_unknown_fields(black_box(&mut pruned), Some(&compiled), true));
        drop_forbidden_nulls(black_box(&mut pruned), &compiled);
    });
    let mut defaulted = object.clone();
    add("set defaults", &mut || apply_defaults(black_box(&mut defaulted), &compiled, usize::MAX).expect("no limit"));
    add("validate", &mut || {
        black_box(validate(&compiled, black_box(&object), None, &Unbounded));
        black_box(validate_list_types(&compiled, black_box(&object)));
    });
    add("validate beside the old object", &mut || {
        black_box(validate(&compiled, black_box(&object), Some(&defaulted), &Unbounded));
    });
    let began = Instant::now();
    (0..100).for_each(|_| drop(black_box(Schema::read(black_box(&json)))));
    let cost = began.elapsed().as_secs_f64() * 1e6 / 100.0;
    results.add(ApiServerKind::Narthex, &format!("compile a schema of {} bytes", json.to_string().len()), "us", cost);
}
