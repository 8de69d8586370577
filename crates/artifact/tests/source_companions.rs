//! Codes and their scales: which stored tensors belong together, what is refused, exact values, imported words.

mod common;

use std::path::Path;

use common::Random;
use common::safetensors::{Tensor, f32s, words, write};
use ninfer_artifact::ArtifactErrorKind as K;
use ninfer_artifact::source::{
    Content, FloatType, OpenOptions, SafetensorsSource, SourceTensor, TensorSource,
};
use ninfer_formats::encoder::RowPlanes;
use ninfer_formats::float::{bf16, e2m1, e4m3, f16};
use ninfer_formats::import::{Fp8Scales, import_fp8, import_nvfp4};
use ninfer_formats::{FormatError, FormatId, TensorView, encoded_size};

struct Model {
    dir: tempfile::TempDir,
}

impl Model {
    fn new(tensors: &[Tensor<'_>]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        write(&dir.path().join("model.safetensors"), tensors);
        Self { dir }
    }
    fn config(self, config: &str) -> Self {
        std::fs::write(self.dir.path().join("config.json"), config).unwrap();
        self
    }
    fn with(&self, options: &OpenOptions) -> SafetensorsSource {
        SafetensorsSource::open(self.path(), options).unwrap()
    }
    fn path(&self) -> &Path {
        self.dir.path()
    }
    fn open(&self) -> SafetensorsSource {
        self.with(&OpenOptions::default())
    }
}

fn entry<'s>(s: &'s SafetensorsSource, name: &str) -> &'s SourceTensor {
    &s.tensors()[s.find(name).unwrap_or_else(|| panic!("{name} is not listed"))]
}

fn reason(s: &SafetensorsSource, name: &str) -> String {
    let i = s.find(name).unwrap_or_else(|| panic!("{name} is not listed: {:?}", s.tensors()));
    let Content::Unsupported(reason) = &s.tensors()[i].content else {
        panic!("{name} is readable: {:?}", s.tensors()[i])
    };
    // Whoever reads it all the same gets the reason.
    let e = s.read_values(i, 0..0, &mut []).unwrap_err();
    assert!(matches!(e.kind(), K::SourceContent { .. }), "{e}");
    assert!(e.to_string().contains(name) && e.to_string().contains(reason.as_str()), "{e}");
    assert!(s.importable(i).is_empty() && s.nvfp4(i).is_err());
    reason.clone()
}

fn values(s: &SafetensorsSource, name: &str, step: usize) -> Vec<f32> {
    let i = s.find(name).unwrap();
    let t = &s.tensors()[i];
    let k = t.k() as usize;
    let mut out = vec![0.0; t.elements() as usize];
    for (c, out) in out.chunks_mut(step * k).enumerate() {
        let begin = (c * step) as u64;
        s.read_values(i, begin..begin + (out.len() / k) as u64, out).unwrap();
    }
    out
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// Codes without NaN.
fn codes(random: &mut Random, n: usize) -> Vec<u8> {
    random.bytes(n).into_iter().map(|c| if e4m3::is_nan(c) { c ^ 1 } else { c }).collect()
}

fn import(s: &SafetensorsSource, name: &str, n: usize, k: usize, step: usize) -> Vec<u8> {
    let format = FormatId::Fp8E4m3fnRowBf16;
    let mut payload = vec![0; encoded_size(format, &[n as u64, k as u64], 1).unwrap() as usize];
    let mut rest = RowPlanes::of_payload(format, n, k, &mut payload).unwrap();
    let mut at = 0;
    while at < n {
        let (mut head, tail) = rest.split_at(step.min(n - at));
        let end = at + head.rows();
        s.import_rows(s.find(name).unwrap(), format, at as u64..end as u64, &mut head).unwrap();
        (rest, at) = (tail, end);
    }
    payload
}

/// FR-53.
#[test]
fn fp8_rows_by_every_shape_and_type_of_scale() {
    let (n, k) = (5usize, 7usize);
    let mut random = Random(31);
    let c = codes(&mut random, n * k);
    // Not representable as bfloat16, so that rounding once is seen.
    let f: Vec<f32> = (0..n).map(|i| 0.1 + i as f32 / 3.0).collect();
    let b: Vec<u16> = f.iter().map(|&x| bf16::from_f32(x)).collect();
    let h: Vec<u16> = f.iter().map(|&x| f16::from_f32(x)).collect();
    /// Name, type, shape, bytes, values.
    type Case<'a> = (&'a str, &'a str, Vec<u64>, Vec<u8>, Vec<f32>);
    let scale = "x.weight_scale";
    let mut cases: Vec<Case<'_>> = vec![
        (scale, "F32", vec![5, 1], f32s(&f), f.clone()),
        (scale, "BF16", vec![5], words(&b), b.iter().map(|&w| bf16::to_f32(w)).collect()),
        (scale, "F16", vec![5, 1], words(&h), h.iter().map(|&w| f16::to_f32(w)).collect()),
    ];
    for shape in [vec![], vec![1], vec![1, 1]] {
        for name in ["x.weight_scale", "x.weight_scale_inv", "x.scale_weight"] {
            cases.push((name, "F32", shape.clone(), f32s(&[0.3]), vec![0.3; n]));
        }
    }
    for (name, dtype, shape, stored, scales) in cases {
        let m = Model::new(&[
            (name, dtype, &shape, stored.clone()),
            ("x.weight", "F8_E4M3", &[5, 7], c.clone()),
            ("x.input_scale", "F32", &[], f32s(&[9.0])),
        ]);
        let s = m.open();
        assert_eq!(s.tensors().len(), 1, "{name} {shape:?}: {:?}", s.tensors());
        let t = entry(&s, "x.weight");
        assert_eq!(t.content, Content::Fp8Rows, "{name} {shape:?}");
        assert_eq!((t.companions.as_slice(), t.bytes), (&[name.to_owned()][..], (35 + stored.len()) as u64));
        assert_eq!(s.unused().len(), 1);
        assert_eq!(s.unused()[0].name, "x.input_scale");
        assert!(t.content.is_quantized());
        let wanted: Vec<f32> = (0..n * k).map(|i| e4m3::to_f32(c[i]) * scales[i / k]).collect();
        for step in [1, 2, 5] {
            assert_eq!(bits(&values(&s, "x.weight", step)), bits(&wanted), "{name} {shape:?} by {step}");
            assert_eq!(s.importable(0), [FormatId::Fp8E4m3fnRowBf16]);
            let given = match dtype {
                "BF16" => import_fp8(n, k, &c, Fp8Scales::Bf16(&b), &[5]),
                _ => import_fp8(n, k, &c, Fp8Scales::F32(&scales), &[5]),
            };
            assert_eq!(import(&s, "x.weight", n, k, step), given.unwrap(), "{name} {shape:?} by {step}");
        }
    }
}

#[test]
fn fp8_words_that_the_format_does_not_admit_are_named_with_their_row() {
    let m = Model::new(&[
        ("x.weight", "F8_E4M3", &[4, 2], vec![1, 2, 3, 4, 5, 6, 7, 0x7f]),
        ("x.weight_scale", "F32", &[4], f32s(&[1.0, 1.0, -1.0, 1.0])),
    ]);
    let s = m.open();
    for (rows, row) in [(2..3u64, 2), (3..4, 3)] {
        let mut payload = vec![0; encoded_size(FormatId::Fp8E4m3fnRowBf16, &[1, 2], 1).unwrap() as usize];
        let mut planes = RowPlanes::of_payload(FormatId::Fp8E4m3fnRowBf16, 1, 2, &mut payload).unwrap();
        let e = s.import_rows(0, FormatId::Fp8E4m3fnRowBf16, rows, &mut planes).unwrap_err();
        assert!(matches!(e.kind(), K::Format(FormatError::Refused { .. })), "{e}");
        assert!(e.to_string().contains(&format!("row {row}")) && e.to_string().contains("x.weight"), "{e}");
    }
    // As values they are what they are.
    let v = values(&s, "x.weight", 4);
    assert!(v[7].is_nan() && v[4] < 0.0);
}

#[test]
fn fp8_tiles_multiply_and_may_be_ragged() {
    let mut random = Random(37);
    let (n, k) = (131usize, 300usize);
    let c = codes(&mut random, n * k);
    let scale: Vec<f32> = (0..6).map(|i| 0.01 + i as f32 * 0.37).collect();
    let brains: Vec<u16> = scale.iter().map(|&x| bf16::from_f32(x)).collect();
    for (dtype, stored, scale) in [
        ("F32", f32s(&scale), scale.clone()),
        ("BF16", words(&brains), brains.iter().map(|&w| bf16::to_f32(w)).collect()),
    ] {
        let m = Model::new(&[
            ("x.weight", "F8_E4M3", &[131, 300], c.clone()),
            ("x.weight_scale_inv", dtype, &[2, 3], stored),
        ]);
        let s = m.open();
        assert_eq!(entry(&s, "x.weight").content, Content::Fp8Blocks);
        assert!(s.importable(0).is_empty());
        let wanted: Vec<f32> =
            (0..n * k).map(|i| e4m3::to_f32(c[i]) * scale[i / k / 128 * 3 + i % k / 128]).collect();
        for step in [1, 50, 127, 129, 131] {
            assert_eq!(bits(&values(&s, "x.weight", step)), bits(&wanted), "{dtype} by {step}");
        }
        let mut planes = [0; 302];
        let mut planes = RowPlanes::new(FormatId::Fp8E4m3fnRowBf16, 1, 300, {
            let (a, b) = planes.split_at_mut(300);
            [a, b, &mut []]
        })
        .unwrap();
        let e = s.import_rows(0, FormatId::Fp8E4m3fnRowBf16, 0..1, &mut planes).unwrap_err();
        assert!(matches!(e.kind(), K::NotImportable { .. }), "{e}");
    }
}

/// Codes `[n, k / 2]`, scales `[n, k / 16]`.
fn nvfp4_words(random: &mut Random, n: usize, k: usize) -> (Vec<u8>, Vec<u8>) {
    let scales = random.bytes(n * k / 16).into_iter().map(|w| w & 0x7e).collect();
    (random.bytes(n * k / 2), scales)
}

#[test]
fn nvfp4_of_both_exporters() {
    let mut random = Random(41);
    let (n, k) = (128usize, 64usize);
    let (c, sc) = nvfp4_words(&mut random, n, k);
    let global = 0.3f32;
    for modelopt in [false, true] {
        let names = if modelopt {
            ["x.weight", "x.weight_scale", "x.weight_scale_2", "x.input_scale"]
        } else {
            ["x.weight_packed", "x.weight_scale", "x.weight_global_scale", "x.input_global_scale"]
        };
        let shape: &[u64] = if modelopt { &[] } else { &[1] };
        let m = Model::new(&[
            (names[3], "F32", shape, f32s(&[3.0])),
            (names[2], "F32", shape, f32s(&[global])),
            (names[1], "F8_E4M3", &[128, 4], sc.clone()),
            (names[0], "U8", &[128, 32], c.clone()),
        ]);
        let s = m.open();
        assert_eq!(s.tensors().len(), 1, "{:?}", s.tensors());
        let t = entry(&s, "x.weight");
        assert_eq!((&t.content, t.shape.as_slice()), (&Content::Nvfp4, &[128, 64][..]));
        let mut companions = vec![names[1], names[2]];
        companions.sort_unstable();
        assert_eq!(t.companions, companions);
        assert_eq!(t.bytes, 128 * 32 + 128 * 4 + 4);
        assert_eq!(s.unused()[0].name, names[3]);
        let wanted: Vec<f32> = (0..n * k)
            .map(|i| {
                let code = c[i / 2] >> (4 * (i % 2)) & 15;
                let product = e2m1::TO_F32[usize::from(code)] * e4m3::to_f32(sc[i / 16]);
                if modelopt { product * global } else { product / global }
            })
            .collect();
        for step in [1, 100, 128] {
            assert_eq!(bits(&values(&s, "x.weight", step)), bits(&wanted));
        }
        assert_eq!(s.importable(0), [FormatId::Nvfp4]);
        let parts = s.nvfp4(0).unwrap();
        let (payload, rows) = import_nvfp4(&[parts, parts]).unwrap();
        assert_eq!(rows, 256);
        let view = TensorView::new(FormatId::Nvfp4, &[256, 64], 2, &payload).unwrap();
        let w = view.nvfp4_words().unwrap();
        assert_eq!((&w.codes[..c.len()], &w.scales[sc.len()..]), (&c[..], &sc[..]));
        let divisor = if modelopt { 1.0 / global } else { global };
        assert_eq!(w.divisors, [divisor.to_bits(); 2]);
        // Rows of nvfp4 have no planes of their own.
        let mut bytes = [0; 128];
        let mut planes = RowPlanes::new(FormatId::Bf16, 1, 64, [&mut bytes, &mut [], &mut []]).unwrap();
        let e = s.import_rows(0, FormatId::Nvfp4, 0..1, &mut planes).unwrap_err();
        assert!(matches!(e.kind(), K::NotImportable { .. }), "{e}");
    }
}

/// FR-50.
#[test]
fn nvfp4_off_the_tile_has_values_and_no_import() {
    let mut random = Random(43);
    let (c, sc) = nvfp4_words(&mut random, 130, 80);
    let m = Model::new(&[
        ("x.weight_packed", "U8", &[130, 40], c),
        ("x.weight_scale", "F8_E4M3", &[130, 5], sc),
        ("x.weight_global_scale", "F32", &[1], f32s(&[2.0])),
    ]);
    let s = m.open();
    assert_eq!(values(&s, "x.weight", 7).len(), 130 * 80);
    let e = import_nvfp4(&[s.nvfp4(0).unwrap()]).unwrap_err();
    assert!(matches!(e, FormatError::Shape { .. }), "{e}");
    let e = e.to_string();
    assert!(e.contains("128") && e.contains("64"), "{e}");
}

#[test]
fn companions_that_do_not_fit_are_refused() {
    let c8 = vec![1u8; 32 * 8];
    let weight = ("x.weight", "F8_E4M3", &[32u64, 8][..], c8.clone());
    let cases: &[(&[Tensor<'_>], &str)] = &[
        (
            &[("x.weight_scale", "F32", &[8], f32s(&[1.0; 8]))],
            "have shape [8]; expected [], [1], [1, 1], [32] or [32, 1]",
        ),
        (&[("x.weight_scale", "F32", &[1, 32], f32s(&[1.0; 32]))], "have shape [1, 32]"),
        (&[("x.weight_scale_inv", "F32", &[32], f32s(&[1.0; 32]))], "tiles of 128 x 128"),
        (&[("x.scale_weight", "F32", &[32], f32s(&[1.0; 32]))], "expected [], [1] or [1, 1]"),
        (&[("x.weight_scale", "F64", &[], vec![0; 8])], "are F64; BF16, F16 or F32 are read"),
        (&[("x.weight_scale", "F8_E8M0", &[32, 1], vec![1; 32])], "are F8_E8M0"),
        (
            &[("x.weight_scale", "F32", &[], f32s(&[1.0])), ("x.weight_scale_inv", "F32", &[], f32s(&[1.0]))],
            "more than one tensor claims to scale it: \"x.weight_scale\", \"x.weight_scale_inv\"",
        ),
        (
            &[("x.weight_scale", "F32", &[], f32s(&[1.0])), ("x.weight_zero_point", "I8", &[], vec![0])],
            "more than one",
        ),
        (&[("x.weight_scale_2", "F32", &[], f32s(&[1.0]))], "\"x.weight_scale_2\" of FP8 codes is not known"),
        (&[("x.weight_strange", "F32", &[], f32s(&[1.0]))], "\"x.weight_strange\" of FP8 codes is not known"),
    ];
    for (companions, text) in cases {
        let mut tensors = companions.to_vec();
        tensors.push(weight.clone());
        let m = Model::new(&tensors);
        let s = m.open();
        assert_eq!(s.tensors().len(), 1, "{:?}", s.tensors());
        assert!(reason(&s, "x.weight").contains(text), "{}", reason(&s, "x.weight"));
    }
    let rank3 = Model::new(&[
        ("x.weight", "F8_E4M3", &[2, 2, 2], vec![1; 8]),
        ("x.weight_scale", "F32", &[], f32s(&[1.0])),
    ]);
    assert!(reason(&rank3.open(), "x.weight").contains("must have rank 2"));
}

/// FR-49, FR-50: flat (swizzled) scales, scale columns other than K / 16.
#[test]
fn nvfp4_companions_that_do_not_fit_are_refused() {
    let packed = ("x.weight_packed", "U8", &[32u64, 8][..], vec![1u8; 256]);
    let scale = ("x.weight_scale", "F8_E4M3", &[32u64, 1][..], vec![1u8; 32]);
    let global = ("x.weight_global_scale", "F32", &[1u64][..], f32s(&[1.0]));
    let with = |tensors: &[Tensor<'_>]| reason(&Model::new(tensors).open(), "x.weight");
    let r = with(&[packed.clone(), ("x.weight_scale", "F8_E4M3", &[32], vec![1; 32]), global.clone()]);
    assert!(r.contains("have shape [32]; expected [32, 1]") && r.contains("may be swizzled already"), "{r}");
    let r = with(&[packed.clone(), ("x.weight_scale", "F8_E4M3", &[32, 2], vec![1; 64]), global.clone()]);
    assert!(r.contains("have shape [32, 2]; expected [32, 1]"), "{r}");
    let r = with(&[packed.clone(), ("x.weight_scale", "U8", &[32, 1], vec![1; 32]), global.clone()]);
    assert!(r.contains("are U8; NVFP4 has F8_E4M3"), "{r}");
    let r = with(&[packed.clone(), scale.clone(), ("x.weight_global_scale", "BF16", &[1], vec![0; 2])]);
    assert!(r.contains("expected one F32"), "{r}");
    let r = with(&[packed.clone(), scale.clone(), ("x.weight_global_scale", "F32", &[2], vec![0; 8])]);
    assert!(r.contains("expected one F32"), "{r}");
    let r = with(&[packed.clone(), scale.clone()]);
    assert!(r.contains("packed U8 codes with the companions [\"x.weight_scale\"] are not known"), "{r}");
    let r = with(std::slice::from_ref(&packed));
    assert!(r.contains("companions []"), "{r}");
    let r =
        with(&[packed.clone(), scale.clone(), global.clone(), ("x.weight_shape", "I64", &[2], vec![0; 16])]);
    assert!(r.contains("x.weight_shape"), "{r}");
    let r = with(&[("x.weight_packed", "I32", &[32, 2], vec![1; 256]), scale.clone(), global.clone()]);
    assert!(r.contains("packed I32 codes"), "{r}");
    let r = with(&[("x.weight_packed", "U8", &[256], vec![1; 256]), scale.clone(), global.clone()]);
    assert!(r.contains("must have rank 2"), "{r}");
    // ModelOpt.
    let codes = ("x.weight", "U8", &[32u64, 8][..], vec![1u8; 256]);
    let second = ("x.weight_scale_2", "F32", &[][..], f32s(&[1.0]));
    let r = with(&[codes.clone(), scale.clone()]);
    assert!(r.contains("\"x.weight_scale\" alone"), "{r}");
    let r =
        with(&[codes.clone(), scale.clone(), second.clone(), ("x.weight_zero", "F32", &[], f32s(&[1.0]))]);
    assert!(r.contains("\"x.weight_zero\" of U8 codes is not known"), "{r}");
    // A global scale that is no number.
    for bad in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let m = Model::new(&[
            packed.clone(),
            scale.clone(),
            ("x.weight_global_scale", "F32", &[1], f32s(&[bad])),
        ]);
        let e = m.open().read_values(0, 0..1, &mut [0.0; 16]).unwrap_err();
        assert!(matches!(e.kind(), K::SourceWord { .. }), "{e}");
    }
}

/// FR-53: a scale that is not used is an error, codes without one want a choice.
#[test]
fn scales_of_nobody_and_codes_without_scales_are_refused() {
    let m = Model::new(&[
        ("a.weight", "BF16", &[2, 2], vec![0; 8]),
        ("a.weight_scale", "F32", &[2, 1], vec![0; 8]),
        ("b.weight_scale", "F32", &[2, 1], vec![0; 8]),
        ("b.weight_scale_inv", "F32", &[1, 1], vec![0; 4]),
        ("b.scale_weight", "F32", &[], vec![0; 4]),
        ("c.weight", "F8_E4M3", &[2, 2], vec![1; 4]),
        ("d.input_scale", "F32", &[], vec![0; 4]),
        ("e.weight_global_scale", "F32", &[], vec![0; 4]),
        // Names that merely look like it.
        ("f.layer_scale", "F32", &[2], vec![0; 8]),
        ("f.norm.scale", "F32", &[2], vec![0; 8]),
        ("logit_scale", "F32", &[], vec![0; 4]),
        ("k_scale", "F32", &[], vec![0; 4]),
    ]);
    let s = m.open();
    assert_eq!(s.tensors().len(), 12);
    assert!(reason(&s, "a.weight_scale").contains("belongs to \"a.weight\", which is BF16"));
    assert_eq!(entry(&s, "a.weight").content, Content::Values(FloatType::Bf16));
    for name in
        ["b.weight_scale", "b.weight_scale_inv", "b.scale_weight", "d.input_scale", "e.weight_global_scale"]
    {
        assert!(reason(&s, name).contains("no such tensor is there"), "{name}");
    }
    assert!(reason(&s, "c.weight").contains("no scale tensor"));
    for name in ["f.layer_scale", "f.norm.scale", "logit_scale", "k_scale"] {
        assert_eq!(entry(&s, name).content, Content::Values(FloatType::F32), "{name}");
    }
    // The explicit choice.
    let s = m.with(&OpenOptions { fp8_without_scale: true, ..OpenOptions::default() });
    assert_eq!(entry(&s, "c.weight").content, Content::Values(FloatType::E4m3));
    assert_eq!(values(&s, "c.weight", 2), [e4m3::to_f32(1); 4]);
    assert!(s.importable(s.find("c.weight").unwrap()).is_empty());
}

/// FR-55 and its kind.
#[test]
fn other_quantisations_are_refused_by_name() {
    let m = Model::new(&[
        ("a.weight", "F8_E5M2", &[2, 2], vec![1; 4]),
        ("a.weight_scale", "F32", &[], vec![0; 4]),
        ("b.weight", "F8_E4M3FNUZ", &[2, 2], vec![1; 4]),
        ("c.weight", "F8_E8M0", &[2, 2], vec![1; 4]),
        ("d.weight", "I8", &[2, 2], vec![1; 4]),
        ("d.weight_scale", "F32", &[2, 1], vec![0; 8]),
        ("e.qweight", "I32", &[2, 2], vec![1; 16]),
        ("e.qzeros", "I32", &[2], vec![1; 8]),
        ("e.scales", "F16", &[2], vec![1; 4]),
        ("e.g_idx", "I32", &[2], vec![1; 8]),
        ("f_blocks", "U8", &[2, 16], vec![1; 32]),
        ("f_scales", "U8", &[2], vec![1; 2]),
        ("g.weight", "U8", &[4, 1], vec![1; 4]),
        ("g.weight.absmax", "F32", &[1], vec![0; 4]),
        ("g.weight.quant_map", "F32", &[16], vec![0; 64]),
        ("g.weight.quant_state.bitsandbytes__nf4", "U8", &[2], vec![0; 2]),
        ("h.weight", "I8", &[2, 2], vec![1; 4]),
        ("h.SCB", "F32", &[2], vec![0; 8]),
        ("i.weight", "U8", &[2, 2], vec![1; 4]),
        ("j.weight", "F4", &[2, 2], vec![1; 2]),
    ]);
    let s = m.open();
    for (name, text) in [
        ("a.weight", "F8_E5M2 codes"),
        ("b.weight", "F8_E4M3FNUZ"),
        ("c.weight", "F8_E8M0"),
        ("d.weight", "I8 codes with scales"),
        ("e.weight", "GPTQ"),
        ("f", "MXFP4"),
        ("g.weight", "bitsandbytes"),
        ("h.weight", "bitsandbytes"),
        ("j.weight", "F4"),
    ] {
        assert!(reason(&s, name).contains(text), "{name}: {}", reason(&s, name));
    }
    // Plain integers are integers.
    assert!(matches!(entry(&s, "i.weight").content, Content::Integers(_)));
    assert_eq!(s.tensors().len(), 10, "{:?}", s.tensors());
}

/// A mixed model: FP8 rows, NVFP4 and plain, typed each from its own companions.
fn mixed() -> Vec<Tensor<'static>> {
    vec![
        ("a.weight", "F8_E4M3", &[2, 16], vec![1; 32]),
        ("a.weight_scale", "BF16", &[2, 1], vec![0; 4]),
        ("b.weight_packed", "U8", &[2, 8], vec![1; 16]),
        ("b.weight_scale", "F8_E4M3", &[2, 1], vec![1; 2]),
        ("b.weight_global_scale", "F32", &[1], f32s(&[1.0])),
        ("c.weight", "BF16", &[2, 16], vec![0; 64]),
    ]
}

fn groups(first: &str, second: &str, ignore: &str) -> String {
    format!(
        r#"{{"quantization_config":{{"quant_method":"compressed-tensors","ignore":{ignore},"config_groups":{{
        "group_0":{{"targets":{first},"weights":{{"type":"float","num_bits":8,"strategy":"channel"}}}},
        "group_1":{{"targets":{second},"weights":{{"type":"float","num_bits":4,"strategy":"tensor_group","group_size":16}}}}}}}}}}"#
    )
}

/// FR-52: every tensor is typed from its own companions, overlapping groups are reported.
#[test]
fn the_configuration_can_only_contradict() {
    let typed = |s: &SafetensorsSource| {
        assert_eq!(entry(s, "a.weight").content, Content::Fp8Rows);
        assert_eq!(entry(s, "b.weight").content, Content::Nvfp4);
        assert_eq!(entry(s, "c.weight").content, Content::Values(FloatType::Bf16));
    };
    let s = Model::new(&mixed()).config(&groups(r#"["a"]"#, r#"["re:b$"]"#, r#"["c"]"#)).open();
    typed(&s);
    assert!(s.warnings().is_empty(), "{:?}", s.warnings());
    assert_eq!(s.quant_method(), Some("compressed-tensors"));
    // Both groups mean a; one of them agrees.
    let s = Model::new(&mixed()).config(&groups(r#"["a"]"#, r#"["re:[ab]"]"#, "[]")).open();
    typed(&s);
    assert_eq!(s.warnings().len(), 1, "{:?}", s.warnings());
    assert!(s.warnings()[0].contains("\"a.weight\"") && s.warnings()[0].contains("group_1 says NVFP4"));
    // A class means any tensor that is quantised, and none that is not.
    typed(&Model::new(&mixed()).config(&groups(r#"["Linear"]"#, r#"["Linear"]"#, r#"["c"]"#)).open());

    let contradicts = |config: String, name: &str, text: &str| {
        let m = Model::new(&mixed()).config(&config);
        let s = m.open();
        assert!(reason(&s, name).contains(text), "{}", reason(&s, name));
        let s = m.with(&OpenOptions { ignore_quantization_config: true, ..OpenOptions::default() });
        typed(&s);
        assert!(s.warnings().iter().any(|w| w.contains(name) && w.contains(text)), "{:?}", s.warnings());
    };
    contradicts(
        groups(r#"["b"]"#, r#"["a"]"#, "[]"),
        "a.weight",
        "config.json says NVFP4 (group_1), but it has FP8",
    );
    contradicts(groups(r#"["b"]"#, r#"["a"]"#, "[]"), "b.weight", "config.json says FP8 with row");
    contradicts(
        groups(r#"["a"]"#, r#"["b"]"#, r#"["re:.*a"]"#),
        "a.weight",
        "leaves it unquantised (\"re:.*a\")",
    );
    contradicts(groups(r#"["x"]"#, r#"["b"]"#, "[]"), "a.weight", "no group of config.json means it");
    contradicts(
        groups(r#"["a", "c"]"#, r#"["b"]"#, "[]"),
        "c.weight",
        "says FP8 with row or tensor scales (group_0), but it is BF16",
    );
    // An expression that cannot be read leaves the question open.
    typed(&Model::new(&mixed()).config(&groups(r#"["re:(?=a)a"]"#, r#"["b"]"#, "[]")).open());
}

#[test]
fn other_configurations() {
    let fp8 = |extra: &str| {
        format!(r#"{{"text_config":{{"quantization_config":{{"quant_method":"fp8"{extra}}}}}}}"#)
    };
    let tiles = [
        ("a.weight", "F8_E4M3", &[130u64, 2][..], vec![1u8; 260]),
        ("a.weight_scale_inv", "F32", &[2, 1][..], f32s(&[1.0, 2.0])),
        ("b.weight", "F8_E4M3", &[2, 2], vec![1; 4]),
        ("b.weight_scale_inv", "F32", &[1, 1], f32s(&[1.0])),
    ];
    for extra in ["", r#","weight_block_size":[128,128]"#, r#","weight_block_size":null"#] {
        let s = Model::new(&tiles).config(&fp8(extra)).open();
        assert_eq!(entry(&s, "a.weight").content, Content::Fp8Blocks, "{extra}");
        assert_eq!(entry(&s, "b.weight").content, Content::Fp8Rows, "{extra}");
    }
    let s = Model::new(&tiles).config(&fp8(r#","weight_block_size":[64,64]"#)).open();
    assert!(reason(&s, "a.weight").contains("64 x 64 tiles"));
    let s = Model::new(&tiles).config(&fp8(r#","modules_to_not_convert":["a"]"#)).open();
    assert!(reason(&s, "a.weight").contains("leaves it unquantised"));

    // weight_scale of tiles: only where the configuration says so.
    let block = |sides: &str| {
        format!(
            r#"{{"quantization_config":{{"quant_method":"compressed-tensors","config_groups":{{"g":{{"targets":["Linear"],
            "weights":{{"type":"float","num_bits":8,"strategy":"block","block_structure":{sides}}}}}}}}}}}"#
        )
    };
    let tiles = [
        ("a.weight", "F8_E4M3", &[300u64, 2][..], vec![1u8; 600]),
        ("a.weight_scale", "F32", &[3, 1][..], f32s(&[1.0, 2.0, 3.0])),
    ];
    assert!(
        reason(&Model::new(&tiles).open(), "a.weight")
            .contains("[3, 1] where config.json says tiles of 128 x 128")
    );
    let s = Model::new(&tiles).config(&block("[128,128]")).open();
    assert_eq!(entry(&s, "a.weight").content, Content::Fp8Blocks);
    assert_eq!(values(&s, "a.weight", 300)[599], e4m3::to_f32(1) * 3.0);
    reason(&Model::new(&tiles).config(&block("[100,128]")).open(), "a.weight");

    // ModelOpt, in config.json and in its own file.
    let of = |body: &str| format!(r#"{{"quantization_config":{{"quant_method":"modelopt",{body}}}}}"#);
    let s = Model::new(&mixed()).config(&of(r#""quant_algo":"NVFP4","ignore":["a*","c"]"#)).open();
    assert!(reason(&s, "a.weight").contains("\"a*\""));
    assert_eq!(entry(&s, "b.weight").content, Content::Nvfp4);
    let mixed_precision = of(
        r#""quant_algo":"MIXED_PRECISION","quantized_layers":{"a":{"quant_algo":"FP8"},"b":{"quant_algo":"NVFP4"}}"#,
    );
    let s = Model::new(&mixed()).config(&mixed_precision).open();
    assert_eq!(entry(&s, "a.weight").content, Content::Fp8Rows);
    assert_eq!(entry(&s, "b.weight").content, Content::Nvfp4);
    let m = Model::new(&mixed());
    let own = r#"{"quantization":{"quant_algo":"NVFP4","exclude_modules":[]}}"#;
    std::fs::write(m.path().join("hf_quant_config.json"), own).unwrap();
    assert!(reason(&m.open(), "a.weight").contains("quant_algo NVFP4"));
    // Methods that say nothing about these formats.
    let s = Model::new(&mixed()).config(r#"{"quantization_config":{"quant_method":"something"}}"#).open();
    assert_eq!(entry(&s, "a.weight").content, Content::Fp8Rows);
    // Scales of caches are nobody's weights in a quantised model.
    let mut tensors = mixed();
    tensors.push(("attn.k_scale", "F32", &[], f32s(&[1.0])));
    let s = Model::new(&tensors).config(r#"{"quantization_config":{"quant_method":"something"}}"#).open();
    assert!(s.find("attn.k_scale").is_none());
    assert_eq!(s.unused()[0].name, "attn.k_scale");
    assert!(s.describe().to_string().contains("attn.k_scale"));
}

#[test]
fn companions_are_found_across_shards() {
    let dir = tempfile::tempdir().unwrap();
    let tensors = mixed();
    let mut places = Vec::new();
    for (i, t) in tensors.iter().enumerate() {
        let name = format!("s{}.safetensors", 5 - i);
        write(&dir.path().join(&name), std::slice::from_ref(t));
        places.push(format!("{:?}:{name:?}", t.0));
    }
    let index = format!(r#"{{"weight_map":{{{}}}}}"#, places.join(","));
    std::fs::write(dir.path().join("model.safetensors.index.json"), index).unwrap();
    let s = SafetensorsSource::open(dir.path(), &OpenOptions::default()).unwrap();
    let whole = Model::new(&tensors).open();
    assert_eq!(s.tensors().len(), 3);
    for name in ["a.weight", "b.weight", "c.weight"] {
        assert_eq!(entry(&s, name).content, entry(&whole, name).content);
        assert_eq!(bits(&values(&s, name, 1)), bits(&values(&whole, name, 2)), "{name}");
    }
    assert_eq!(s.files()[entry(&s, "a.weight").file].name(), "s5.safetensors");
}
