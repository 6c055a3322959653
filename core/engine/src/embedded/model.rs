//! The forward pass: new tokens of one or several rooms, through all layers, to logits.

use std::sync::Arc;

use innkeeper_room::SlabError;

use super::attention::{Segment, attend, store};
use super::kernel::{add, gated, matmul, rms_norm};
use super::weights::{Block, Weights};

/// A model with scratch memory for one pass at a time.
pub(super) struct Model {
    weights: Arc<Weights>,
    scratch: Scratch,
}

/// Intermediate results, kept so that memory is not asked for anew in every layer. All are `rows × something`.
#[derive(Default)]
struct Scratch {
    x: Vec<f32>,
    normed: Vec<f32>,
    qkv: Vec<f32>,
    kv: Vec<f32>,
    attended: Vec<f32>,
    projected: Vec<f32>,
    gate_up: Vec<f32>,
    gated: Vec<f32>,
}

impl Model {
    pub(super) fn new(weights: Arc<Weights>) -> Self {
        Self {
            weights,
            scratch: Scratch::default(),
        }
    }

    /// Feeds `ids`, the segments' new tokens one after the other, and writes their KV into the rooms' pages. Returns
    /// for each segment the logits after its last token if `wanted`, or why its pages could not be used.
    pub(super) fn forward(
        &mut self,
        segments: &[Segment<'_>],
        ids: &[u32],
        wanted: bool,
    ) -> Vec<Result<Vec<f32>, SlabError>> {
        let weights = Arc::clone(&self.weights);
        let shape = &weights.shape;
        let s = &mut self.scratch;
        s.resize(&weights, ids.len());
        for (id, x) in ids.iter().zip(s.x.chunks_exact_mut(shape.width)) {
            weights.embedding.row(*id as usize, x);
        }
        let mut failed = vec![None; segments.len()];
        for (layer, block) in weights.blocks.iter().enumerate() {
            s.attention(&weights, layer, block, segments, &mut failed);
            s.feed_forward(shape.epsilon, shape.hidden, block);
            if failed.iter().all(Option::is_some) {
                break;
            }
        }
        if !wanted {
            return failed
                .into_iter()
                .map(|error| error.map_or(Ok(Vec::new()), Err))
                .collect();
        }
        s.logits(&weights, segments, failed)
    }
}

impl Scratch {
    fn resize(&mut self, weights: &Weights, rows: usize) {
        let shape = &weights.shape;
        let kv = shape.kv_width();
        self.x.resize(rows * shape.width, 0.0);
        self.normed.resize(rows * shape.width, 0.0);
        self.qkv.resize(rows * (shape.width + 2 * kv), 0.0);
        self.kv.resize(rows * 2 * kv, 0.0);
        self.attended.resize(rows * shape.width, 0.0);
        self.projected.resize(rows * shape.width, 0.0);
        self.gate_up.resize(rows * 2 * shape.hidden, 0.0);
        self.gated.resize(rows * shape.hidden, 0.0);
    }

    fn attention(
        &mut self,
        weights: &Weights,
        layer: usize,
        block: &Block,
        segments: &[Segment<'_>],
        failed: &mut [Option<SlabError>],
    ) {
        let shape = &weights.shape;
        let stride = shape.width + 2 * shape.kv_width();
        rms_norm(&self.x, &block.attention_norm, shape.epsilon, &mut self.normed);
        matmul(&self.normed, &block.qkv, &mut self.qkv);
        let positions = segments
            .iter()
            .flat_map(|segment| segment.from..segment.from + segment.len);
        let half = shape.head_dim / 2;
        for (position, row) in positions.zip(self.qkv.chunks_exact_mut(stride)) {
            let turned = shape.width + shape.kv_width();
            let rotation = &weights.rotations[position * half..(position + 1) * half];
            row[..turned]
                .chunks_exact_mut(shape.head_dim)
                .for_each(|head| rotate(head, rotation));
        }
        for (kv, row) in self
            .kv
            .chunks_exact_mut(2 * shape.kv_width())
            .zip(self.qkv.chunks_exact(stride))
        {
            kv.copy_from_slice(&row[shape.width..]);
        }
        let mut kv = self.kv.as_slice();
        for (segment, failed) in segments.iter().zip(failed.iter_mut()) {
            let (rows, rest) = kv.split_at(segment.len * 2 * shape.kv_width());
            kv = rest;
            if let Err(error) = store(shape, layer, segment, rows) {
                *failed = Some(error);
            }
        }
        attend(shape, layer, segments, (&self.qkv, stride), &mut self.attended, failed);
        matmul(&self.attended, &block.output, &mut self.projected);
        add(&mut self.x, &self.projected);
    }

    fn feed_forward(&mut self, epsilon: f32, hidden: usize, block: &Block) {
        rms_norm(&self.x, &block.ffn_norm, epsilon, &mut self.normed);
        matmul(&self.normed, &block.gate_up, &mut self.gate_up);
        gated(&self.gate_up, hidden, &mut self.gated);
        matmul(&self.gated, &block.down, &mut self.projected);
        add(&mut self.x, &self.projected);
    }

    /// The logits after each segment's last token.
    fn logits(
        &self,
        weights: &Weights,
        segments: &[Segment<'_>],
        failed: Vec<Option<SlabError>>,
    ) -> Vec<Result<Vec<f32>, SlabError>> {
        let width = weights.shape.width;
        let mut last = Vec::with_capacity(segments.len() * width);
        let mut end = 0;
        for segment in segments {
            end += segment.len;
            last.extend_from_slice(&self.x[(end - 1) * width..end * width]);
        }
        let mut normed = vec![0.0; last.len()];
        rms_norm(&last, &weights.norm, weights.shape.epsilon, &mut normed);
        let mut logits = vec![0.0; segments.len() * weights.shape.vocabulary];
        matmul(&normed, weights.head(), &mut logits);
        let rows = logits.chunks_exact(weights.shape.vocabulary).map(<[f32]>::to_vec);
        failed
            .into_iter()
            .zip(rows)
            .map(|(error, row)| error.map_or(Ok(row), Err))
            .collect()
    }
}

/// Turns neighbouring pairs: the order in which GGUF files of this architecture keep the rows of Q and K.
fn rotate(head: &mut [f32], rotation: &[(f32, f32)]) {
    let (pairs, _) = head.as_chunks_mut::<2>();
    for ([a, b], (cos, sin)) in pairs.iter_mut().zip(rotation) {
        (*a, *b) = (*a * cos - *b * sin, *a * sin + *b * cos);
    }
}
