//! The system's allocator, which counts.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);

/// Allocations of the process so far, and their sizes together. Memory that grows counts as allocated anew.
#[derive(Clone, Copy)]
pub(crate) struct AllocationCounts {
    pub(crate) allocations: u64,
    pub(crate) bytes: u64,
}

impl AllocationCounts {
    pub(crate) fn now() -> AllocationCounts {
        AllocationCounts { allocations: ALLOCATIONS.load(Ordering::Relaxed), bytes: BYTES.load(Ordering::Relaxed) }
    }

    pub(crate) fn since(&self, before: &AllocationCounts) -> AllocationCounts {
        AllocationCounts { allocations: self.allocations - before.allocations, bytes: self.bytes - before.bytes }
    }

    pub(crate) fn min(self, other: AllocationCounts) -> AllocationCounts {
        AllocationCounts { allocations: self.allocations.min(other.allocations), bytes: self.bytes.min(other.bytes) }
    }
}

struct CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn count(size: usize) {
    ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    BYTES.fetch_add(size as u64, Ordering::Relaxed);
}

// SAFETY: every call is passed on to the system's allocator.
#[expect(unsafe_code, reason = "the trait of allocators is unsafe")]
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count(new_size);
        unsafe { System.realloc(pointer, layout, new_size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        unsafe { System.dealloc(pointer, layout) }
    }
}
