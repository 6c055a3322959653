//! The progress bar while a model is fetched and loaded.

use std::sync::Arc;

use indicatif::{ProgressBar, ProgressStyle};
use innkeeper_engine::fetch::Progress;
use innkeeper_node::config::EngineConfig;
use innkeeper_node::model::{Loading, Model, ModelError};

/// Parts of the bar for what is told as 0 to 1.
const PARTS: u64 = 1000;

/// Fetches a model, loads it (with its `weights` if an engine will run here), and shows how far it is, on stderr.
///
/// # Errors
/// [`ModelError`] says what is missing and what to do.
pub(crate) fn load(config: &EngineConfig, weights: bool) -> Result<Arc<Model>, ModelError> {
    let bar = ProgressBar::new(PARTS);
    // The template is a constant: it cannot be wrong.
    if let Ok(style) = ProgressStyle::with_template("{msg:24} [{bar:40}] {percent:>3}%") {
        bar.set_style(style.progress_chars("=> "));
    }
    let model = Model::load(config, weights, &|loading| show(&bar, &loading));
    bar.finish_and_clear();
    model
}

fn show(bar: &ProgressBar, loading: &Loading) {
    match loading {
        Loading::Fetching(Progress::Downloading { bytes, total }) => {
            bar.set_message(format!("fetching the model {} MB", bytes >> 20));
            let done = total.filter(|total| *total > 0).map(|total| bytes * PARTS / total);
            bar.set_position(done.unwrap_or(0));
        }
        Loading::Fetching(Progress::Unpacking(done)) => {
            bar.set_message("unpacking the model");
            bar.set_position(part(*done));
        }
        Loading::Weights(done) => {
            bar.set_message("loading the model");
            bar.set_position(part(*done));
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped to 0..=1000"
)]
fn part(done: f32) -> u64 {
    (done.clamp(0.0, 1.0) * 1000.0) as u64
}
