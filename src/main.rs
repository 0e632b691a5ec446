//! The `narthex` command.

use std::ffi::CStr;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// What jemalloc reads at its start (`jemalloc(3)`, TUNING).
///
/// A worker frees what a burst of requests took all at once. With the usual room in its cache most of that would go
/// back to the arena, and be fetched from there by the next burst: a thirtieth of all CPU.
///
/// A thread of jemalloc's own gives back to the system what was freed ten seconds ago (`dirty_decay_ms`): otherwise an
/// arena does so only as it is used, and a gateway that is idle after a burst keeps all of it.
#[expect(unsafe_code, reason = "the name under which jemalloc looks for it")]
#[unsafe(export_name = "_rjem_malloc_conf")]
pub static MALLOC_CONF: &CStr = c"tcache_nslots_small_min:200,tcache_nslots_small_max:2000,lg_tcache_nslots_mul:3,background_thread:true,max_background_threads:1";

fn main() -> std::process::ExitCode {
    narthex::roles::main()
}
