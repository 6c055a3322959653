//! Attention over KV that lies in pages as f16.
//!
//! Keys and values are always read back from the pages, also those just computed: a room sees the same numbers whether
//! its KV was computed here or arrived from elsewhere.

use half::f16;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use innkeeper_room::SlabError;
use pulp::Simd;
use rayon::prelude::*;

use super::kernel::{Kernel, dot, exp, reduce, wide};
use super::weights::Shape;
use crate::pool::RoomPages;

/// Rows per task: enough to pay for reading the keys, few enough to share out.
const BLOCK: usize = 32;

/// Consecutive new tokens of one room.
pub(super) struct Segment<'a> {
    pub(super) pages: &'a RoomPages,
    /// The position of the first one in the room.
    pub(super) from: usize,
    /// How many.
    pub(super) len: usize,
}

/// Where a layer's KV lies: layer group, and the offset within a token's share of the group's slab.
struct Place {
    group: u32,
    /// Elements of a token in the slab.
    stride: usize,
    /// First element of this layer's keys; its values follow.
    offset: usize,
}

impl Place {
    fn new(shape: &Shape, layer: usize) -> Self {
        let kv = 2 * shape.kv_width();
        let group = u32::try_from(layer / shape.group_layers()).unwrap_or(u32::MAX);
        Self {
            group,
            stride: shape.group_layers() * kv,
            offset: layer % shape.group_layers() * kv,
        }
    }
}

/// Writes the keys and values of new tokens (rows of `kv`: keys, then values) into the room's pages, rounded to f16.
pub(super) fn store(shape: &Shape, layer: usize, segment: &Segment<'_>, kv: &[f32]) -> Result<(), SlabError> {
    let place = Place::new(shape, layer);
    let width = 2 * shape.kv_width();
    let page_tokens = segment.pages.layout().page_tokens as usize;
    let mut rows = kv.chunks_exact(width);
    let (mut at, end) = (segment.from, segment.from + segment.len);
    while at < end {
        let next = end.min((at / page_tokens + 1) * page_tokens);
        segment
            .pages
            .with_slab_mut((at / page_tokens) as u32, place.group, |slab| {
                for (token, row) in (at % page_tokens..).zip(rows.by_ref().take(next - at)) {
                    let start = token * place.stride + place.offset;
                    slab[start..start + width]
                        .reinterpret_cast_mut::<f16>()
                        .convert_from_f32_slice(row);
                }
            })?;
        at = next;
    }
    Ok(())
}

/// One task: some rows of one segment against one KV head.
struct Unit<'a, 'b> {
    segment: &'a Segment<'b>,
    index: usize,
    head: usize,
    /// First row within the segment, and within all rows.
    row: usize,
    first: usize,
    /// `rows × group width`.
    out: &'a mut [f32],
}

/// Attention of all new rows. `q` is `rows × stride`, its first columns the rotated queries; `out` is
/// `rows × query width`. A segment whose pages are closed is reported in `failed` and its rows are meaningless.
pub(super) fn attend(
    shape: &Shape,
    layer: usize,
    segments: &[Segment<'_>],
    (q, stride): (&[f32], usize),
    out: &mut [f32],
    failed: &mut [Option<SlabError>],
) {
    let place = Place::new(shape, layer);
    let width = shape.heads / shape.kv_heads * shape.head_dim;
    let mut heads = vec![0.0; out.len()];
    let units = units(shape, segments, width, &mut heads);
    let run = |unit: Unit<'_, '_>| {
        let index = unit.index;
        head(shape, &place, unit, q, stride).err().map(|error| (index, error))
    };
    let errors: Vec<_> = units.into_par_iter().filter_map(run).collect();
    for (index, error) in errors {
        failed[index] = Some(error);
    }
    // Heads lie one after the other; rows want them side by side.
    let rows = out.len() / (shape.kv_heads * width);
    for (head, from) in heads.chunks_exact((rows * width).max(1)).enumerate() {
        for (to, from) in out
            .chunks_exact_mut(shape.kv_heads * width)
            .zip(from.chunks_exact(width))
        {
            to[head * width..(head + 1) * width].copy_from_slice(from);
        }
    }
}

fn units<'a, 'b>(
    shape: &Shape,
    segments: &'a [Segment<'b>],
    width: usize,
    mut heads: &'a mut [f32],
) -> Vec<Unit<'a, 'b>> {
    let mut units = Vec::new();
    for head in 0..shape.kv_heads {
        let mut first = 0;
        for (index, segment) in segments.iter().enumerate() {
            for row in (0..segment.len).step_by(BLOCK) {
                let rows = BLOCK.min(segment.len - row);
                let (out, rest) = heads.split_at_mut(rows * width);
                heads = rest;
                units.push(Unit {
                    segment,
                    index,
                    head,
                    row,
                    first,
                    out,
                });
                first += rows;
            }
        }
    }
    units
}

/// One KV head for a block of rows.
fn head(shape: &Shape, place: &Place, unit: Unit<'_, '_>, q: &[f32], stride: usize) -> Result<(), SlabError> {
    let dim = shape.head_dim;
    let per = shape.heads / shape.kv_heads;
    let rows = unit.out.len() / (per * dim);
    let start = unit.segment.from + unit.row;
    let mut keys = vec![0.0f32; (start + rows) * dim];
    let mut values = vec![0.0f32; (start + rows) * dim];
    let key_at = place.offset + unit.head * dim;
    gather(
        place,
        unit.segment.pages,
        key_at,
        dim,
        &mut keys,
        shape.kv_width(),
        &mut values,
    )?;
    let mut weights = vec![0.0; start + rows];
    let queries = &q[unit.first * stride + unit.head * per * dim..];
    let (keys, values, weights) = (&keys, &values, &mut weights);
    wide(Rows {
        queries,
        stride,
        start,
        dim,
        per,
        keys,
        values,
        weights,
        out: unit.out,
    });
    Ok(())
}

/// The attention of a block of rows, for the query heads that share a KV head.
struct Rows<'a> {
    queries: &'a [f32],
    /// From one row's queries to the next's.
    stride: usize,
    /// Tokens before the first row.
    start: usize,
    dim: usize,
    /// Query heads.
    per: usize,
    keys: &'a [f32],
    values: &'a [f32],
    weights: &'a mut [f32],
    out: &'a mut [f32],
}

impl Kernel for Rows<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let dim = self.dim;
        for (row, out) in self.out.chunks_exact_mut(self.per * dim).enumerate() {
            let seen = self.start + row + 1;
            let (keys, values) = (&self.keys[..seen * dim], &self.values[..seen * dim]);
            let query = &self.queries[row * self.stride..][..self.per * dim];
            for (query, out) in query.chunks_exact(dim).zip(out.chunks_exact_mut(dim)) {
                softmax(query, keys, dim, &mut self.weights[..seen]);
                weigh(simd, &self.weights[..seen], values, dim, out);
            }
        }
    }
}

/// Reads one head's keys and values from the pages.
fn gather(
    place: &Place,
    pages: &RoomPages,
    key_at: usize,
    dim: usize,
    keys: &mut [f32],
    value_after: usize,
    values: &mut [f32],
) -> Result<(), SlabError> {
    let page = pages.layout().page_tokens as usize * dim;
    for (at, (keys, values)) in (0u32..).zip(keys.chunks_mut(page).zip(values.chunks_mut(page))) {
        pages.with_slab(at, place.group, |slab| {
            let slab = slab.reinterpret_cast::<f16>();
            let tokens = slab.chunks_exact(place.stride);
            for ((token, key), value) in tokens.zip(keys.chunks_exact_mut(dim)).zip(values.chunks_exact_mut(dim)) {
                token[key_at..key_at + dim].convert_to_f32_slice(key);
                let value_at = key_at + value_after;
                token[value_at..value_at + dim].convert_to_f32_slice(value);
            }
        })?;
    }
    Ok(())
}

/// The weights of all tokens a query sees.
#[inline(always)]
fn softmax(query: &[f32], keys: &[f32], dim: usize, weights: &mut [f32]) {
    let scale = 1.0 / (dim as f32).sqrt();
    let mut highest = f32::NEG_INFINITY;
    for (weight, key) in weights.iter_mut().zip(keys.chunks_exact(dim)) {
        *weight = dot(query, key) * scale;
        highest = highest.max(*weight);
    }
    let mut lanes = [0.0f32; 8];
    for weights in weights.chunks_mut(8) {
        for (weight, lane) in weights.iter_mut().zip(&mut lanes) {
            *weight = exp(*weight - highest);
            *lane += *weight;
        }
    }
    let scale = 1.0 / reduce(&lanes);
    for weight in weights.iter_mut() {
        *weight *= scale;
    }
}

/// The weighted sum of values, token by token. The widest parts whose sums stay in registers are taken first.
#[inline(always)]
fn weigh<S: Simd>(simd: S, weights: &[f32], values: &[f32], dim: usize, out: &mut [f32]) {
    let (out, _) = S::as_mut_simd_f32s(out);
    let (eights, rest) = out.as_chunks_mut::<8>();
    let first_rest = eights.len() * 8;
    for (at, out) in eights.iter_mut().enumerate() {
        *out = weighted::<S, 8>(simd, weights, values, dim, at * 8);
    }
    for (at, out) in rest.iter_mut().enumerate() {
        [*out] = weighted::<S, 1>(simd, weights, values, dim, first_rest + at);
    }
}

/// The part of the sum that is `V` vectors, from vector `at` of each value on.
#[inline(always)]
fn weighted<S: Simd, const V: usize>(simd: S, weights: &[f32], values: &[f32], dim: usize, at: usize) -> [S::f32s; V] {
    let mut sums = [simd.splat_f32s(0.0); V];
    for (weight, value) in weights.iter().zip(values.chunks_exact(dim)) {
        let (value, _) = S::as_simd_f32s(value);
        let Some(value) = value[at..].first_chunk::<V>() else {
            break;
        };
        let weight = simd.splat_f32s(*weight);
        for vector in 0..V {
            sums[vector] = simd.mul_add_f32s(weight, value[vector], sums[vector]);
        }
    }
    sums
}
