//! Sources and runs of recipe conversions.
#![allow(dead_code, reason = "each test program uses some of it")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ninfer_artifact::convert::{
    Converted, ImportanceFile, PlanOptions, Recipe, RecipePlan, RunOptions, Session, plan_recipe,
};
use ninfer_artifact::source::{self, TensorSource};
use ninfer_artifact::{Artifact, ArtifactError};
use ninfer_gguf::GgmlType;

use super::gguf::{Source, on, write_gguf};
use super::{ID, Random};

/// Values of a plausible weight matrix.
pub fn values(random: &mut Random, n: usize) -> Vec<f32> {
    (0..n).map(|_| (random.next() % 20_001) as f32 / 1e5 - 0.1 + (random.next() % 97) as f32 * 1e-7).collect()
}

pub fn f32_tensor(name: &str, dims: &[u64], values: &[f32]) -> Source {
    assert_eq!(dims.iter().product::<u64>(), values.len() as u64);
    let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    (name.into(), GgmlType::F32, dims.to_vec(), bytes)
}

pub fn open(dir: &Path, tensors: &[Source]) -> Arc<dyn TensorSource> {
    let path = dir.join("m.gguf");
    if !path.exists() {
        write_gguf(&path, &[], tensors);
    }
    Arc::from(source::open(&path, &source::OpenOptions::default()).unwrap())
}

pub fn plan(source: &Arc<dyn TensorSource>, recipe: &str) -> Result<Arc<RecipePlan>, ArtifactError> {
    plan_with(source, recipe, None)
}

pub fn plan_with(
    source: &Arc<dyn TensorSource>,
    recipe: &str,
    importance: Option<ImportanceFile>,
) -> Result<Arc<RecipePlan>, ArtifactError> {
    let options = PlanOptions { artifact_id: Some(ID), ..PlanOptions::default() };
    plan_recipe(source.clone(), Recipe::parse_toml(recipe)?, importance, options).map(Arc::new)
}

pub fn run(plan: &Arc<RecipePlan>, to: &Path, options: RunOptions) -> Result<Converted, ArtifactError> {
    let session = Session::start(plan.clone(), to, options)?;
    session.run(on)?;
    session.finish()
}

/// Plans and runs.
pub fn convert(source: &Arc<dyn TensorSource>, recipe: &str, to: &Path) -> (Converted, Artifact) {
    let plan = plan(source, recipe).unwrap_or_else(|e| panic!("{e}"));
    let done = run(&plan, to, RunOptions::default()).unwrap_or_else(|e| panic!("{e}"));
    (done, Artifact::open(to).unwrap())
}

pub fn fresh(dir: &Path, name: &str) -> PathBuf {
    let path = dir.join(name);
    let _ = std::fs::remove_file(&path);
    path
}
