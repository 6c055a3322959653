//! Choosing a token from logits. The choice depends only on the logits, the seed and the request's absolute position.

use innkeeper_room::{Sampling, Token};

/// The most alternatives that are reported per token.
pub const MOST_ALTERNATIVES: usize = 20;

/// splitmix64: a bijection that looks random. Counter-based, so that a position's draw needs no earlier one.
#[must_use]
pub(crate) const fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

/// A number in `[0, 1)` for one position of one request.
#[must_use]
pub fn uniform(seed: u64, position: u64) -> f64 {
    let bits = mix(mix(seed) ^ mix(position ^ 0x706F_7369_7469_6F6E));
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// Chooses the token at an absolute position. Ties go to the lowest id. The reported logprobs are the natural
/// logarithm of the softmax of the raw logits, whatever the temperature.
#[must_use]
pub fn choose(logits: &[f32], sampling: &Sampling, position: u64) -> Token {
    let best = argmax(logits);
    let Some(highest) = logits.get(best as usize).copied() else {
        return Token::default();
    };
    let id = if sampling.temperature > 0.0 && highest.is_finite() {
        draw(logits, highest, sampling, uniform(sampling.seed, position))
    } else {
        best
    };
    let total: f64 = logits.iter().map(|logit| f64::from(logit - highest).exp()).sum();
    let logprob = |logit: f32| (f64::from(logit - highest) - total.ln()) as f32;
    let count = usize::from(sampling.top_logprobs).min(MOST_ALTERNATIVES);
    let top = highest_ids(logits, count)
        .into_iter()
        .map(|id| (id, logprob(logits[id as usize])))
        .collect();
    Token {
        id,
        logprob: logprob(logits[id as usize]),
        top,
    }
}

fn argmax(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (at, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = at;
        }
    }
    best as u32
}

/// Draws from the nucleus at `point` in `[0, 1)`.
fn draw(logits: &[f32], highest: f32, sampling: &Sampling, point: f64) -> u32 {
    let temperature = f64::from(sampling.temperature);
    let weights: Vec<f64> = logits
        .iter()
        .map(|logit| (f64::from(logit - highest) / temperature).exp())
        .collect();
    let total: f64 = weights.iter().sum();
    let top_p = f64::from(sampling.top_p);
    // Without a nucleus the order of ids will do; it needs no sorting.
    if !(0.0..1.0).contains(&top_p) {
        return pick(
            (0..weights.len() as u32).map(|id| (id, weights[id as usize])),
            point * total,
        );
    }
    // Ids that are this unlikely cannot be in the nucleus even all together; what is left is short enough to sort.
    let floor = (1.0 - top_p) * total / weights.len() as f64;
    let mut likely: Vec<u32> = (0..weights.len() as u32)
        .filter(|&id| weights[id as usize] >= floor)
        .collect();
    likely.sort_unstable_by(|a, b| weights[*b as usize].total_cmp(&weights[*a as usize]).then(a.cmp(b)));
    let mut mass = 0.0;
    let mut size = 0;
    for id in &likely {
        mass += weights[*id as usize];
        size += 1;
        if mass >= top_p * total {
            break;
        }
    }
    pick(
        likely[..size].iter().map(|&id| (id, weights[id as usize])),
        point * mass,
    )
}

/// The first id whose cumulated weight passes `point`; the last one with any weight if rounding left a rest.
fn pick(weighted: impl Iterator<Item = (u32, f64)>, point: f64) -> u32 {
    let mut sum = 0.0;
    let mut last = 0;
    for (id, weight) in weighted {
        if weight > 0.0 {
            sum += weight;
            last = id;
            if sum > point {
                break;
            }
        }
    }
    last
}

/// The `count` most likely ids, best first, ties by lowest id.
fn highest_ids(logits: &[f32], count: usize) -> Vec<u32> {
    let mut best: Vec<u32> = Vec::with_capacity(count + 1);
    for (id, logit) in (0u32..).zip(logits) {
        if best.len() == count && best.last().is_none_or(|last| logits[*last as usize] >= *logit) {
            continue;
        }
        let at = best.partition_point(|known| logits[*known as usize] >= *logit);
        best.insert(at, id);
        best.truncate(count);
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampling(temperature: f32, top_p: f32, seed: u64) -> Sampling {
        Sampling {
            temperature,
            top_p,
            seed,
            top_logprobs: 3,
        }
    }

    #[test]
    fn greedy_takes_the_best_and_ties_go_to_the_lowest_id() {
        let token = choose(&[1.0, 3.0, 3.0, 2.0], &sampling(0.0, 1.0, 7), 0);
        assert_eq!(token.id, 1);
        assert_eq!(token.top.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [1, 2, 3]);
    }

    #[test]
    fn logprobs_are_the_softmax_of_the_raw_logits() {
        let token = choose(&[0.0, (3.0f32).ln()], &sampling(0.0, 1.0, 0), 0);
        assert!((token.logprob - 0.75f32.ln()).abs() < 1e-6);
        assert!((token.top[1].1 - 0.25f32.ln()).abs() < 1e-6);
    }

    #[test]
    fn a_draw_depends_on_seed_and_position_alone_and_follows_the_weights() {
        let logits = [0.0, (3.0f32).ln(), f32::NEG_INFINITY];
        let count = |seed| {
            (0..4_000)
                .filter(|at| choose(&logits, &sampling(1.0, 1.0, seed), *at).id == 1)
                .count()
        };
        assert_eq!(count(5), count(5));
        assert!((2_850..3_150).contains(&count(5)), "{}", count(5));
        assert!((0..100).any(|at| uniform(1, at) != uniform(2, at)));
        assert!((0..4_000).all(|at| choose(&logits, &sampling(1.0, 1.0, 9), at).id != 2));
    }

    #[test]
    fn the_nucleus_keeps_the_likely_alone() {
        let logits = [2.0, 1.0, 0.0, -4.0, 1.5];
        let drawn: std::collections::BTreeSet<u32> = (0..2_000)
            .map(|at| choose(&logits, &sampling(1.0, 0.6, 3), at).id)
            .collect();
        assert_eq!(drawn.into_iter().collect::<Vec<_>>(), [0, 4]);
        let narrow = (0..200).all(|at| choose(&logits, &sampling(5.0, 0.0, 3), at).id == 0);
        assert!(narrow, "top_p 0 is the best token alone");
    }

    #[test]
    fn odd_logits_do_not_panic() {
        assert_eq!(choose(&[], &sampling(1.0, 0.9, 0), 0), Token::default());
        let _ = choose(&[f32::NAN, f32::NEG_INFINITY], &sampling(1.0, 0.5, 0), 0);
        let _ = choose(&[f32::NEG_INFINITY; 3], &sampling(1.0, 0.5, 0), 0);
        let _ = choose(&[1.0, f32::NAN, 2.0], &sampling(1.0, 0.5, 0), 0);
    }
}
