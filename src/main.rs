//! The `narthex` command.

use std::ffi::CStr;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// What jemalloc reads at its start (`jemalloc(3)`, TUNING).
///
/// A worker frees what a burst of requests took all at once. With the usual room in its cache most of that would go
/// back to the arena, and be fetched from there by the next burst: a thirtieth of all CPU.
#[expect(unsafe_code, reason = "the name under which jemalloc looks for it")]
#[unsafe(export_name = "_rjem_malloc_conf")]
pub static MALLOC_CONF: &CStr = c"tcache_nslots_small_min:200,tcache_nslots_small_max:2000,lg_tcache_nslots_mul:3";

fn main() -> std::process::ExitCode {
    narthex::roles::main()
}
