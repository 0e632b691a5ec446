//! The `narthex` command.

use std::ffi::CStr;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// jemalloc's options, read at startup (`jemalloc(3)`, TUNING).
///
/// A worker frees the memory of a burst of requests all at once. With the default thread cache most of it would return
/// to the arena and be fetched again by the next burst, at a thirtieth of all CPU.
///
/// hyper makes two arrays of 128 KiB for the head of each HTTP/1.1 request, one slot per permitted header line
/// (`HTTP1_MAX_HEADERS`). The thread cache keeps them; without it a request of an HTTP/1.1 client takes 1 µs more.
///
/// The background thread returns memory to the system ten seconds after it was freed (`dirty_decay_ms`). Without it an
/// arena does so only while it is used, and a gateway that is idle after a burst keeps all of it.
#[expect(unsafe_code, reason = "the name under which jemalloc looks for it")]
#[unsafe(export_name = "_rjem_malloc_conf")]
pub static MALLOC_CONF: &CStr = c"tcache_nslots_small_min:200,tcache_nslots_small_max:2000,lg_tcache_nslots_mul:3,lg_tcache_max:17,background_thread:true,max_background_threads:1";

fn main() -> std::process::ExitCode {
    narthex::commands::main()
}
