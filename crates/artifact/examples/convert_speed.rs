//! Converts every matrix of a model to one format, several times, and prints the seconds of each step:
//! `cargo run --release --example convert_speed -- MODEL OUT.ninfer FORMAT METHOD [THREADS [TIMES]]`

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use ninfer_artifact::convert::{PlanOptions, Recipe, RunOptions, Session, plan_recipe};
use ninfer_artifact::source::{self, OpenOptions, TensorSource};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, model, out, format, method, more @ ..] = arguments.as_slice() else {
        return Err("usage: convert_speed MODEL OUT.ninfer FORMAT METHOD [THREADS [TIMES]]".into());
    };
    let threads = more.first().map(|t| t.parse()).transpose()?;
    let times: usize = more.get(1).map_or(Ok(5), |t| t.parse())?;
    let recipe = format!(
        "[[rule]]\nmatch = '*'\nformat = '{format}'\nmethod = '{method}'\nfallback = ['keep', 'int32']\n"
    );
    let mut steps = [const { Vec::new() }; 3];
    for _ in 0..times {
        let model: Arc<dyn TensorSource> = source::open(model, &OpenOptions::default())?.into();
        let plan = plan_recipe(model, Recipe::parse_toml(&recipe)?, None, PlanOptions::default())?;
        let start = Instant::now();
        let options = RunOptions { threads, ..RunOptions::default() };
        let session = Session::start(Arc::new(plan), out, options)?;
        let started = Instant::now();
        session.run(|_, _| ControlFlow::Continue(()))?;
        let ran = Instant::now();
        session.finish()?;
        let finished = Instant::now();
        for (step, time) in steps.iter_mut().zip([started - start, ran - started, finished - ran]) {
            step.push(time);
        }
        std::fs::remove_file(out)?;
    }
    for (name, mut times) in ["start", "run", "finish"].into_iter().zip(steps) {
        times.sort();
        println!("{name:8} least {:?} median {:?}", times[0], times[times.len() / 2]);
    }
    Ok(())
}
