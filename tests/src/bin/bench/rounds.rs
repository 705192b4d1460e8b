//! Run times of programs in rounds: in each, the empty program and every case have one turn.
//!
//! A host's clock and caches change from minute to minute by a factor of two. So a promise is about a
//! ratio: a program's mean of a turn by the empty program's mean of the same round.

use anyhow::{Result, ensure};

use crate::exchange::{Act, Dialler, Targets};
use crate::program::Program;
use crate::result::Figure;
use crate::sample::Sample;

/// Calls per turn.
const TURN: u32 = 1_000;

/// The client processes of the cases.
pub(crate) struct Clients {
    pub(crate) inside: Dialler,
    pub(crate) outside: Dialler,
}

/// Which client calls.
#[derive(Clone, Copy)]
pub(crate) enum Client {
    /// The one in the cgroup that the agent serves.
    Inside,
    /// The one in a cgroup without the agent's hooks.
    Outside,
}

/// One act of a client, and the programs that it runs.
pub(crate) struct Case {
    name: String,
    client: Client,
    act: Act,
    targets: Targets,
    programs: Vec<Watched>,
    promise: Option<(&'static str, f64)>,
    than: Option<Than>,
}

/// What a case is promised to cost at most, by another case.
struct Than {
    /// The other one's name.
    other: String,
    figure: &'static str,
    ratio: f64,
}

struct Watched {
    hook: String,
    program: Program,
    /// The mean of each turn, in nanoseconds.
    times: Sample,
    /// The same by that of the empty program in the same round.
    ratios: Sample,
}

impl Case {
    pub(crate) fn new(name: impl Into<String>, client: Client, act: Act, targets: Targets) -> Self {
        let (programs, name) = (Vec::new(), name.into());
        Self { name, client, act, targets, programs, promise: None, than: None }
    }

    /// Watches a program, too. It is compared with the empty program at the same place in order.
    pub(crate) fn on(mut self, hook: impl Into<String>, program: Program) -> Self {
        let (times, ratios) = (Sample::default(), Sample::default());
        self.programs.push(Watched { hook: hook.into(), program, times, ratios });
        self
    }

    /// Adds the figures `{name}_ns` and `{name}_x`, and promises at most `ratio` for the latter.
    pub(crate) fn promise(mut self, name: &'static str, ratio: f64) -> Self {
        self.promise = Some((name, ratio));
        self
    }

    /// Adds the figure `figure`, and promises at most `ratio` for it: the times of its first program by those
    /// of another case in the same rounds.
    pub(crate) fn promise_by(mut self, other: &Self, figure: &'static str, ratio: f64) -> Self {
        self.than = Some(Than { other: other.name.clone(), figure, ratio });
        self
    }

    /// The figure by another case.
    fn by_other(&self, cases: &[Self]) -> Option<Figure> {
        let Than { other, figure, ratio } = self.than.as_ref()?;
        let other = cases.iter().find(|case| case.name == *other)?;
        let by = self.programs.first()?.times.by(&other.programs.first()?.times);
        Some(Figure::new(figure, "ratio", &by).at_most(*ratio))
    }

    /// The means of one turn, in nanoseconds.
    fn turn(&self, clients: &mut Clients) -> Result<Vec<f64>> {
        let before = self.programs.iter().map(|it| it.program.runs());
        let before = before.collect::<Result<Vec<_>>>()?;
        let client = match self.client {
            Client::Inside => &mut clients.inside,
            Client::Outside => &mut clients.outside,
        };
        client.times(self.act, self.targets, TURN)?;
        let mean = |(watched, before): (&Watched, _)| {
            let (mean, runs) = watched.program.runs()?.since(before);
            let Self { name, .. } = self;
            ensure!(runs >= TURN.into(), "{name}: {runs} runs of a program in {TURN} calls");
            Ok(mean)
        };
        self.programs.iter().zip(before).map(mean).collect()
    }

    fn figures(&self) -> impl Iterator<Item = Figure> {
        self.programs.iter().flat_map(|watched| {
            let Watched { hook, times, ratios, .. } = watched;
            let time = Figure::new("hook_ns", "ns", times);
            let mut figures = vec![time.with("hook", &**hook).with("case", &*self.name)];
            if let Some((name, ratio)) = self.promise {
                let time = Figure::new(&format!("{name}_ns"), "ns", times);
                let times = Figure::new(&format!("{name}_x"), "ratio", ratios).at_most(ratio);
                figures.extend([time, times].map(|figure| match hook.strip_prefix("tc ") {
                    Some(direction) => figure.with("direction", direction),
                    None => figure,
                }));
            }
            figures
        })
    }
}

/// Measures the cases in this many rounds, after one turn of each that does not count.
pub(crate) fn measure(
    clients: &mut Clients,
    rounds: u32,
    mut empty: Case,
    mut cases: Vec<Case>,
) -> Result<Vec<Figure>> {
    for case in cases.iter().chain([&empty]) {
        case.turn(clients)?;
    }
    for _ in 0..rounds {
        let shortest = empty.turn(clients)?;
        for (watched, mean) in empty.programs.iter_mut().zip(&shortest) {
            watched.times.add(*mean);
        }
        for case in &mut cases {
            let means = case.turn(clients)?;
            for ((watched, mean), shortest) in case.programs.iter_mut().zip(means).zip(&shortest) {
                watched.times.add(mean);
                watched.ratios.add(mean / shortest);
            }
        }
    }
    let figures = [&empty].into_iter().chain(&cases).flat_map(Case::figures);
    Ok(figures.chain(cases.iter().filter_map(|case| case.by_other(&cases))).collect())
}
