//! Conversions by recipe from safetensors: words kept with their scales, stacks with a divisor each, values of tiles.

mod common;

use std::path::Path;
use std::sync::Arc;

use common::Random;
use common::recipe::{fresh, plan, run};
use common::safetensors::{Tensor, f32s, words, write};
use ninfer_artifact::Artifact;
use ninfer_artifact::container::{Binding, BindingPart, ValueOptions};
use ninfer_artifact::convert::{Converted, RunOptions};
use ninfer_artifact::source::{OpenOptions, TensorSource, open};
use ninfer_formats::encoder::{EncoderId, Params, encode};
use ninfer_formats::import::{Fp8Scales, Nvfp4Global, Nvfp4Source, import_fp8, import_nvfp4};
use ninfer_formats::{FormatId, TensorView};

fn source(dir: &Path, tensors: &[Tensor<'_>]) -> Arc<dyn TensorSource> {
    write(&dir.join("model.safetensors"), tensors);
    Arc::from(open(dir.join("model.safetensors"), &OpenOptions::default()).unwrap())
}

fn convert(from: &Arc<dyn TensorSource>, recipe: &str, to: &Path, memory: u64) -> (Converted, Artifact) {
    let plan = plan(from, recipe).unwrap_or_else(|e| panic!("{e}"));
    let options = RunOptions { memory: Some(memory), ..RunOptions::default() };
    let done = run(&plan, to, options).unwrap_or_else(|e| panic!("{e}"));
    let artifact = Artifact::open(to).unwrap();
    assert!(artifact.verify_structure().is_ok());
    assert!(artifact.verify_values(&ValueOptions::default()).unwrap().is_ok());
    (done, artifact)
}

/// Finite E4M3FN codes.
fn codes(random: &mut Random, n: usize) -> Vec<u8> {
    random.bytes(n).into_iter().map(|c| if c & 0x7f == 0x7f { c ^ 1 } else { c }).collect()
}

#[test]
fn nvfp4_is_kept_tile_by_tile_and_stacked_with_a_divisor_each() {
    let dir = tempfile::tempdir().unwrap();
    let mut random = Random(51);
    let (n, k) = (384usize, 192usize);
    let globals = [0.3f32, 7.5];
    let parts: Vec<(Vec<u8>, Vec<u8>)> = (0..2)
        .map(|_| {
            let scales = random.bytes(n * k / 16).into_iter().map(|w| w & 0x7e).collect();
            (random.bytes(n * k / 2), scales)
        })
        .collect();
    let mut tensors: Vec<Tensor<'_>> = Vec::new();
    let names = [
        ["q.weight_packed", "q.weight_scale", "q.weight_global_scale"],
        ["k.weight_packed", "k.weight_scale", "k.weight_global_scale"],
    ];
    for (i, names) in names.iter().enumerate() {
        tensors.push((names[0], "U8", &[384, 96], parts[i].0.clone()));
        tensors.push((names[1], "F8_E4M3", &[384, 12], parts[i].1.clone()));
        tensors.push((names[2], "F32", &[1], f32s(&[globals[i]])));
    }
    let from = source(dir.path(), &tensors);
    let part = |i: usize| Nvfp4Source {
        codes: &parts[i].0,
        codes_shape: &[384, 96],
        scales: &parts[i].1,
        scales_shape: &[384, 12],
        global: Nvfp4Global::Divisor(globals[i]),
    };
    let (one, _) = import_nvfp4(&[part(0)]).unwrap();
    let (both, _) = import_nvfp4(&[part(0), part(1)]).unwrap();
    for memory in [1 << 30, 400_000] {
        let (done, artifact) = convert(&from, "", &fresh(dir.path(), "o"), memory);
        assert_eq!(&*artifact.payload("q.weight").unwrap(), &one[..]);
        assert!(done.statistics(0).is_none());
        let recipe = "[[rule]]\nstack = '{q,k}.weight'\nname = 'qk'\nformat = 'keep'";
        let (_, artifact) = convert(&from, recipe, &fresh(dir.path(), "o"), memory);
        assert_eq!(artifact.object("qk").unwrap().tensor().unwrap().divisors, 2);
        assert_eq!(&*artifact.payload("qk").unwrap(), &both[..]);
        let elements = (n * k) as u64;
        let bound = artifact.directory().bindings().get("k.weight").cloned();
        let part = BindingPart { object: "qk".into(), begin: elements, end: 2 * elements };
        assert_eq!(bound, Some(Binding::Parts(vec![part])));
    }
    // Rows in whole tiles only.
    let rows = |begin, end| {
        format!(
            "[[rule]]\nmatch = 'q.weight'\nrows = [{begin}, {end}]\nformat = 'keep'\n[[rule]]\nmatch = '*'\nformat = 'fp32'"
        )
    };
    let e = plan(&from, &rows(0, 100)).unwrap_err().to_string();
    assert!(e.contains("tiles of 128"), "{e}");
    let (_, artifact) = convert(&from, &rows(128, 256), &fresh(dir.path(), "o"), 1 << 30);
    let view = TensorView::new(FormatId::Nvfp4, &[384, 192], 1, &one).unwrap();
    let (slice, _) = view.row_range(128, 256).unwrap().slice_payload().unwrap();
    assert_eq!(&*artifact.payload("q.weight.rows.128-256").unwrap(), &slice[..]);
    // The values of the rest, exactly.
    let mut values = vec![0.0; n * k];
    view.decode_f32(&mut values).unwrap();
    let words: Vec<u8> = values[..128 * k].iter().flat_map(|v| v.to_le_bytes()).collect();
    assert_eq!(&*artifact.payload("q.weight.rows.0-128").unwrap(), &words[..]);
}

#[test]
fn values_become_nvfp4_with_a_divisor_for_each_part() {
    let dir = tempfile::tempdir().unwrap();
    let mut random = Random(53);
    let (n, k) = (256usize, 128usize);
    let x: Vec<Vec<f32>> = (0..2)
        .map(|i| common::recipe::values(&mut random, n * k).iter().map(|v| v * (1 + 9 * i) as f32).collect())
        .collect();
    let from = source(
        dir.path(),
        &[("a.weight", "F32", &[256, 128], f32s(&x[0])), ("b.weight", "F32", &[256, 128], f32s(&x[1]))],
    );
    for (method, id) in [("nvfp4_maxabs", EncoderId::Nvfp4Maxabs), ("nvfp4_search", EncoderId::Nvfp4Search)] {
        let recipe =
            format!("[[rule]]\nstack = '{{a,b}}.weight'\nname = 'ab'\nformat = 'nvfp4'\nmethod = '{method}'");
        let (done, artifact) = convert(&from, &recipe, &fresh(dir.path(), "o"), 500_000);
        assert_eq!(artifact.object("ab").unwrap().tensor().unwrap().divisors, 2);
        let payload = artifact.payload("ab").unwrap();
        let view = TensorView::new(FormatId::Nvfp4, &[512, 128], 2, &payload).unwrap();
        for (i, x) in x.iter().enumerate() {
            let expected = encode(FormatId::Nvfp4, id, n, k, x, Params::default()).unwrap();
            let (part, divisors) = view.row_range(i * n, (i + 1) * n).unwrap().slice_payload().unwrap();
            assert_eq!((part, divisors), (expected, 1), "{method} {i}");
        }
        assert!(done.statistics(0).unwrap().snr_db() > 15.0);
    }
}

#[test]
fn fp8_rows_are_kept_and_fp8_tiles_encoded_anew() {
    let dir = tempfile::tempdir().unwrap();
    let mut random = Random(55);
    let (n, k) = (131usize, 320usize);
    let (rows, tiles) = (codes(&mut random, n * k), codes(&mut random, n * k));
    let scales: Vec<u16> = (0..n).map(|i| 0x3c00 + i as u16).collect();
    let factors: Vec<f32> = (0..6).map(|i| 0.01 + i as f32 * 0.37).collect();
    let from = source(
        dir.path(),
        &[
            ("r.weight", "F8_E4M3", &[131, 320], rows.clone()),
            ("r.weight_scale", "BF16", &[131, 1], words(&scales)),
            ("t.weight", "F8_E4M3", &[131, 320], tiles),
            ("t.weight_scale_inv", "F32", &[2, 3], f32s(&factors)),
        ],
    );
    let e = plan(&from, "").unwrap_err().to_string();
    assert!(e.contains("\"t.weight\"") && e.contains("name a format and a method"), "{e}");
    let recipe = "[[rule]]\nmatch = 't.weight'\nformat = 'q8_g32_fp16'";
    let mut values = vec![0.0; n * k];
    let at = from.find("t.weight").unwrap();
    from.read_values(at, 0..131, &mut values).unwrap();
    for memory in [1 << 30, 300_000] {
        let (done, artifact) = convert(&from, recipe, &fresh(dir.path(), "o"), memory);
        let expected =
            encode(FormatId::Q8G32Fp16, EncoderId::GroupedAbsmax, n, k, &values, Params::default()).unwrap();
        assert_eq!(&*artifact.payload("t.weight").unwrap(), &expected[..]);
        let expected = import_fp8(n, k, &rows, Fp8Scales::Bf16(&scales), &[131, 1]).unwrap();
        assert_eq!(&*artifact.payload("r.weight").unwrap(), &expected[..]);
        assert!(done.report().to_string().contains("quantised already"));
    }
    // Rows are told apart by their scales: a slice has its own.
    let recipe = format!(
        "{recipe}\n[[rule]]\nmatch = 'r.weight'\nrows = [100, 120]\nformat = 'keep'\n[[rule]]\nmatch = 'r.weight'\ndrop = true"
    );
    let (_, artifact) = convert(&from, &recipe, &fresh(dir.path(), "o"), 1 << 30);
    let expected =
        import_fp8(20, k, &rows[100 * k..120 * k], Fp8Scales::Bf16(&scales[100..120]), &[20, 1]).unwrap();
    assert_eq!(&*artifact.payload("r.weight.rows.100-120").unwrap(), &expected[..]);
}

#[test]
fn configuration_and_tokenizer_come_along() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("config.json"), br#"{"model_type": "tiny", "eps": 1e-5}"#).unwrap();
    std::fs::write(dir.path().join("tokenizer.json"), b"{}\n").unwrap();
    write(&dir.path().join("model.safetensors"), &[("a", "BF16", &[2, 3], words(&[1, 2, 3, 4, 5, 6]))]);
    let from: Arc<dyn TensorSource> = Arc::from(open(dir.path(), &OpenOptions::default()).unwrap());
    let (_, artifact) = convert(&from, "", &dir.path().join("o"), 1 << 30);
    let text = artifact.directory().components().get("text").unwrap();
    assert_eq!(text.config.get("model_type").and_then(|v| v.as_str()), Some("tiny"));
    let (_, id) = text.resources.iter().find(|(_, id)| id.contains("tokenizer")).unwrap();
    assert_eq!(&*artifact.payload(id).unwrap(), b"{}\n");
    assert_eq!(&*artifact.payload("a").unwrap(), &words(&[1, 2, 3, 4, 5, 6])[..]);
}
