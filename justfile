# The habits of this repository. `just` lists them; each is one command you may as well type.

_default:
    @just --list

# Unit and integration tests; neither Go nor root
test *ARGS:
    cargo test --locked {{ARGS}}

# Unit tests whose names contain FILTER: the shortest way from a change to its test
quick FILTER="":
    cargo test --locked --lib -- {{FILTER}}

# kubectl through narthex to real peers; builds them first (needs Go)
interop *ARGS:
    tests/interop/run {{ARGS}}

# The embedded API server, killed so many times while clients use it
kills COUNT="1000":
    NARTHEX_TEST_KILLS={{COUNT}} cargo test --locked --test gateway -- --nocapture process_kills

# CustomResourceDefinitions that come and go for so many minutes; says whether memory stays flat
crd-churn MINUTES="60":
    NARTHEX_TEST_CHURN_MINUTES={{MINUTES}} cargo test --locked --test gateway -- --nocapture definitions_come_and_go

# Requests of one user that need much work, for so many minutes; says what another user and the memory notice
hostile-soak MINUTES="60":
    NARTHEX_TEST_HOSTILE_MINUTES={{MINUTES}} cargo test --locked --test gateway -- --nocapture hostile_requests_leave

# Instructions of a request with 10 times the items of a list, for all lists of all kinds; some minutes, needs valgrind
list-costs:
    cargo test --locked --lib -- --nocapture --ignored instructions_of_lists

# Networks, disks, clocks and processes that fail under load: a table of what became of the requests
faults *ARGS:
    tests/faults/run {{ARGS}}

# Certificates, endpoints, registry and watches that change for so many minutes; says whether memory stays flat
soak MINUTES="60":
    NARTHEX_TEST_SOAK_MINUTES={{MINUTES}} cargo test --locked --test faults -- soak

# Konnectivity: the pairing tests with other versions of the reference on the other side
konnectivity-versions *VERSIONS:
    tests/interop/konnectivity-versions {{VERSIONS}}

# Konnectivity: so many transfers with checksums in each pairing
konnectivity-transfers COUNT="1000":
    NARTHEX_TEST_TRANSFERS={{COUNT}} tests/interop/run "konnectivity: transfers"

# Konnectivity: agents killed and restarted during transfers for so many minutes; says whether memory stays flat
konnectivity-soak MINUTES="60":
    NARTHEX_TEST_SOAK_MINUTES={{MINUTES}} tests/interop/run "konnectivity: agents killed and restarted"

# Pictures of the status pages in docs/operations, by a real browser; some minutes
pictures:
    NARTHEX_TEST_PICTURES=docs/operations tests/interop/run "status page"

# Formatting, clippy, dependencies, documentation
lint:
    cargo fmt --check
    cargo clippy --all-targets --locked -- -D warnings
    cargo clippy --test interop --locked -- -D warnings
    cargo deny --locked check --hide-inclusion-graph bans licenses sources
    RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --locked

# docs/ as a book, in target/book; needs mdbook (cargo install mdbook)
docs *ARGS:
    @command -v mdbook >/dev/null || { echo "mdbook is not installed: run 'cargo install mdbook', or read docs/SUMMARY.md as plain files" >&2; exit 1; }
    mdbook build docs {{ARGS}}

# A gateway with sample custom resources
quickstart *ARGS:
    cargo run --locked --profile quick -- quickstart {{ARGS}}

# The load comparison with HAProxy
bench *ARGS:
    cargo bench --locked --bench compare -- {{ARGS}}

# Archives, Debian package, image, SBOM and checksums, in target/dist
release *ARGS:
    deploy/release {{ARGS}}

# A release with less optimization, verified, in target/release-check; needs some minutes
verify-release:
    deploy/release --quick --output target/release-check
    deploy/verify-release target/release-check

# Everything that must pass before a change goes in
ci:
    bash .ci/run
