//! What is measured, and how a table shows it.

use crate::targets::TargetKind;

/// Bytes of a transfer, over all its tunnels.
pub(crate) const TRANSFER_BYTES: u64 = 1 << 30;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobKind {
    Download,
    Upload,
    Dials,
    Echo,
    Idle,
    StalledTarget,
    StalledClient,
}

impl JobKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            JobKind::Download => "download",
            JobKind::Upload => "upload",
            JobKind::Dials => "dials",
            JobKind::Echo => "echo",
            JobKind::Idle => "idle",
            JobKind::StalledTarget => "stalled-target",
            JobKind::StalledClient => "stalled-client",
        }
    }
}

pub(crate) struct Job {
    /// For `--jobs`.
    pub name: &'static str,
    /// In the table.
    title: &'static str,
    pub kind: JobKind,
    pub target: TargetKind,
    /// Dials, tunnels or round trips.
    pub count: u64,
    /// Tunnels at a time.
    pub workers: u64,
    /// Whether the reference's client can do it, too.
    pub supports_reference_client: bool,
}

const fn job(
    (name, title): (&'static str, &'static str),
    (kind, target): (JobKind, TargetKind),
    count: u64,
    workers: u64,
    supports_reference_client: bool,
) -> Job {
    Job { name, title, kind, target, count, workers, supports_reference_client }
}

pub(crate) const JOBS: &[Job] = &[
    job(("download", "a GiB down"), (JobKind::Download, TargetKind::Source), 1, 1, true),
    job(("upload", "a GiB up"), (JobKind::Upload, TargetKind::Sink), 1, 1, true),
    job(("downloads", "a GiB down, 10 tunnels"), (JobKind::Download, TargetKind::Source), 10, 10, false),
    job(("uploads", "a GiB up, 10 tunnels"), (JobKind::Upload, TargetKind::Sink), 10, 10, false),
    job(("dials", "2000 dials"), (JobKind::Dials, TargetKind::Idle), 2000, 1, true),
    job(("concurrent-dials", "4000 dials, 16 at a time"), (JobKind::Dials, TargetKind::Idle), 4000, 16, true),
    job(("echo", "echo of 100 bytes"), (JobKind::Echo, TargetKind::Echo), 5000, 1, false),
    job(("idle", "4000 idle tunnels"), (JobKind::Idle, TargetKind::Idle), 4000, 1, true),
    job(("stalled-target", "echo, a target stalled"), (JobKind::StalledTarget, TargetKind::Echo), 3000, 1, false),
    job(("stalled-client", "echo, a client stalled"), (JobKind::StalledClient, TargetKind::Echo), 3000, 1, false),
];

/// Figures of one run of a job.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct JobFigures {
    seconds: f64,
    /// CPU seconds of client, server and agent.
    pub cpu: [f64; 3],
    /// Bytes that the client has more at the end.
    resident: f64,
    /// Bytes that server and agent have more: with idle tunnels some time after the last was opened, else at their peak.
    pub memory: [f64; 2],
    /// Microseconds of a round trip: median and 99th percentile.
    echo: [f64; 2],
    /// The 99th percentile while a tunnel is stalled; infinite if a round trip took more than five seconds.
    stalled_p99: f64,
}

impl JobFigures {
    pub(crate) fn parse(output: &serde_json::Value) -> JobFigures {
        let number = |name: &str| output.get(name).and_then(serde_json::Value::as_f64).unwrap_or(f64::INFINITY);
        JobFigures {
            seconds: number("seconds"),
            cpu: [number("cpu"), 0.0, 0.0],
            resident: number("resident"),
            memory: [0.0; 2],
            echo: [number("p50"), number("p99")],
            stalled_p99: number("stalledP99"),
        }
    }

    fn megabytes_per_second(&self) -> f64 {
        TRANSFER_BYTES as f64 / 1e6 / self.seconds
    }
}

impl Job {
    pub(crate) fn workers_of_transfer(&self) -> u64 {
        if self.is_transfer() { self.workers } else { 1 }
    }

    fn is_transfer(&self) -> bool {
        matches!(self.kind, JobKind::Download | JobKind::Upload)
    }

    /// Whether relays, and a run without a tunnel, say something.
    pub(crate) fn has_baseline(&self) -> bool {
        matches!(self.kind, JobKind::Download | JobKind::Upload | JobKind::Echo)
    }

    /// For a transfer, the line of the speed as a share of that without a tunnel.
    pub(crate) fn print_share(&self, figures: &[Vec<JobFigures>], direct: &[JobFigures]) {
        if self.is_transfer() && !direct.is_empty() {
            let direct = median(direct, &JobFigures::megabytes_per_second);
            self.print_row(figures, "of MB/s without a tunnel", &|it| it.megabytes_per_second() / direct);
        }
    }

    fn print_row(&self, figures: &[Vec<JobFigures>], what: &str, figure: &dyn Fn(&JobFigures) -> f64) {
        let values: Vec<String> = figures
            .iter()
            .map(|figures| match figures[..] {
                [] => format!("{:>10}", "-"),
                _ => format!("{:10.2}", median(figures, figure)),
            })
            .collect();
        println!("{:34} {}   {what}", self.title, values.join(" "));
    }

    /// One line for each figure, with a column for each of `figures`.
    pub(crate) fn print(&self, figures: &[Vec<JobFigures>], is_of_clients: bool) {
        let row = |what: &str, figure: &dyn Fn(&JobFigures) -> f64| self.print_row(figures, what, figure);
        let for_each = |bytes: f64| bytes / 1024.0 / self.count as f64;
        match self.kind {
            JobKind::Idle if is_of_clients => row("KiB of the client for each", &|it| for_each(it.resident)),
            JobKind::Idle => {
                row("KiB of the server for each", &|it| for_each(it.memory[0]));
                row("KiB of the agent for each", &|it| for_each(it.memory[1]));
            }
            JobKind::Dials => row("a second", &|it| self.count as f64 / it.seconds),
            JobKind::Echo => {
                row("p50, µs", &|it| it.echo[0]);
                row("p99, µs", &|it| it.echo[1]);
            }
            JobKind::StalledTarget | JobKind::StalledClient => {
                row("p99 before, µs", &|it| it.echo[1]);
                row("p99 meanwhile, µs", &|it| it.stalled_p99);
                row("MiB of the server", &|it| it.memory[0] / 1048576.0);
                row("MiB of the agent", &|it| it.memory[1] / 1048576.0);
                return;
            }
            JobKind::Download | JobKind::Upload => row("MB/s", &JobFigures::megabytes_per_second),
        }
        for (at, user) in ["client", "server", "agent"].iter().enumerate() {
            row(&format!("CPU seconds of the {user}"), &|it| it.cpu[at]);
        }
        row("CPU seconds of server and agent", &|it| it.cpu[1] + it.cpu[2]);
    }
}

fn median(all: &[JobFigures], figure: &dyn Fn(&JobFigures) -> f64) -> f64 {
    let mut values: Vec<f64> = all.iter().map(figure).collect();
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}
