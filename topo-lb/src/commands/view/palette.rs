//! Whether the colours of the page can be read and told apart, also by those who see fewer.

use std::collections::HashMap;

const STYLE: &str = include_str!("page/style.css");

/// A colour in linear light: red, green, blue, 0–1.
type Linear = [f64; 3];

/// How colours are seen with all cones, and without those for long, medium and short waves: Machado, Oliveira
/// and Fernandes 2009, severity 1.
const EYES: [(&str, [[f64; 3]; 3]); 4] = [
    ("all cones", [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]),
    (
        "protanopia",
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ],
    ),
    (
        "deuteranopia",
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ],
    ),
    (
        "tritanopia",
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ],
    ),
];

/// The colours by name of each theme: light, dark as the system says, dark as the reader says.
fn themes() -> [HashMap<&'static str, &'static str>; 3] {
    let blocks = STYLE.split(":root").skip(1).map(|text| {
        let block = text.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
        let pairs = block.map_or("", |(inside, _)| inside).split(';');
        let pairs = pairs.filter_map(|pair| pair.split_once(':'));
        let pairs = pairs.map(|(name, value)| (name.trim(), value.trim()));
        pairs.filter(|(_, value)| value.starts_with('#')).collect::<HashMap<_, _>>()
    });
    let blocks: Vec<_> = blocks.filter(|it| !it.is_empty()).collect();
    blocks.try_into().expect("three themes")
}

fn linear(colour: &str) -> Linear {
    let digits = colour.trim_start_matches('#');
    let each = |at: usize| match digits.len() {
        3 => digits[at..=at].repeat(2),
        _ => digits[2 * at..2 * at + 2].to_owned(),
    };
    std::array::from_fn(|at| {
        let part = f64::from(u8::from_str_radix(&each(at), 16).expect("a colour")) / 255.0;
        if part <= 0.04045 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) }
    })
}

/// As in WCAG 2.2: 1 to 21.
fn contrast(one: &str, other: &str) -> f64 {
    let luminance = |colour| {
        let [red, green, blue] = linear(colour);
        0.2126 * red + 0.7152 * green + 0.0722 * blue + 0.05
    };
    let (one, other) = (luminance(one), luminance(other));
    one.max(other) / one.min(other)
}

/// The distance in CIELAB (1976) of two colours as these eyes see them.
fn distance(one: &str, other: &str, eyes: &[[f64; 3]; 3]) -> f64 {
    let lab = |colour| {
        let light = linear(colour);
        let seen: Linear = std::array::from_fn(|at| {
            let parts = eyes[at].iter().zip(light).map(|(share, light)| share * light);
            parts.sum::<f64>().clamp(0.0, 1.0)
        });
        let [red, green, blue] = seen;
        let f = |value: f64| {
            if value > 0.008_856 { value.cbrt() } else { 7.787 * value + 16.0 / 116.0 }
        };
        let x = f((0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.950_47);
        let y = f(0.2126 * red + 0.7152 * green + 0.0722 * blue);
        let z = f((0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.088_83);
        [116.0 * y - 16.0, 500.0 * (x - y), 200.0 * (y - z)]
    };
    let pairs = lab(one).into_iter().zip(lab(other));
    pairs.map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt()
}

#[test]
fn every_text_has_enough_contrast() {
    for theme in themes() {
        for text in ["text", "quiet", "accent", "bad"] {
            for back in ["card", "back", "soft", "bad-soft", "warm-soft"] {
                let found = contrast(theme[&*format!("--{text}")], theme[&*format!("--{back}")]);
                assert!(found >= 4.5, "{text} on {back}: {found:.2}, {theme:?}");
            }
        }
    }
}

#[test]
fn every_meaning_has_a_colour_that_everybody_can_tell_from_the_others() {
    const MEANINGS: [&str; 5] = ["--node", "--zone", "--region", "--elsewhere", "--bad"];
    for theme in themes() {
        for (at, one) in MEANINGS.into_iter().enumerate() {
            for other in &MEANINGS[at + 1..] {
                for (eyes, seen) in EYES {
                    let found = distance(theme[one], theme[other], &seen);
                    assert!(found >= 25.0, "{one} and {other}, {eyes}: {found:.0}, {theme:?}");
                }
            }
        }
    }
}

#[test]
fn the_dark_theme_is_the_same_whoever_asks_for_it() {
    let [light, by_system, by_reader] = themes();
    assert_eq!(by_system, by_reader);
    assert_ne!(light, by_system);
}
