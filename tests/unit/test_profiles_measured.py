"""Profiles from measurements: calibrate, import-samples, measuring-script; and their use in a scenario."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from morphling.errors import InputError, ProfileError, RunError, ScenarioError
from morphling.executors.gemm_fit import predict
from morphling.run.calibrate import calibrate, scenario_shapes
from morphling.run.measured_profiles import DeviceFacts, measured_profile, write_profile
from morphling.run.run import run
from morphling.scenario import load_profile, load_scenario
from morphling.scenario.gemm_samples import parse_samples, read_samples
from tests.unit.test_gemm_fit import samples_of

pytest.importorskip("scipy")

SCENARIO = """\
name: tiny
workload: {{model: opt-125m, batch_size: 1, sequence_length: 64, dtype: float32}}
fleet:
  - {{profile: {profile}, count: 3, link: {{downlink: 1 Gbit/s, uplink: 1 Gbit/s}}}}
coordinator: {{downlink: 10 Gbit/s, uplink: 10 Gbit/s}}
strategy: {{name: cleave}}
execution: {execution}
"""


def morphling(*words: object, cwd: Path, code: int = 0) -> str:
    command = [sys.executable, "-m", "morphling", *map(str, words)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if code == 0 else done.stderr


def csv_of(count: int = 60, factor: float = 1.0) -> str:
    s = samples_of(shapes=count)
    rows = zip(s.m, s.n, s.k, s.layouts(), s.lda, s.ldb, s.batch, predict_ms(s) * factor, strict=True)
    lines = [f"{m},{n},{k},float32,{la},{lda},{ldb},{b},{ms:.9g}" for m, n, k, la, lda, ldb, b, ms in rows]
    return "\n".join(["# host: a formula", "m,n,k,dtype,layout,lda,ldb,batch,ms", *lines]) + "\n"


def predict_ms(s) -> np.ndarray:
    return s.seconds * 1e3


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a profile `phone` made of samples."""
    folder = tmp_path_factory.mktemp("imported")
    (folder / "s.csv").write_text(csv_of())
    said = morphling(
        *("profiles", "import-samples", "s.csv", "--name", "phone", "--memory", "6 GB", "--memory-reserved", "3 GB"),
        *("--class", "phone", "--title", "A phone", "--json"), cwd=folder,
    )  # fmt: skip
    report = json.loads(said)
    assert report["written"] == ["phone.yaml", "phone-samples.csv", "phone.png"]
    assert report["fits"]["float32"]["held_out"]["shapes"] == 15
    return folder


def test_an_imported_profile_can_be_named_at_once(imported: Path, tmp_path: Path) -> None:
    profile = load_profile("./phone.yaml", imported)
    assert (profile.device_class, profile.title, profile.usable_memory) == ("phone", "A phone", 3_000_000_000)
    assert profile.gemm_model is not None
    assert profile.sources["gemm_model.float32"].startswith("measured: a formula")
    text = SCENARIO.format(profile=imported / "phone.yaml", execution="{mode: profiled}")
    results = run(text, out=tmp_path / "out", figures=False)
    executor = results.manifest["executor"]
    assert executor["executor"] == "profiled"
    assert executor["rows"]["fitted"] > 0
    assert list(executor["fits"]) == ["phone, float32"]
    assert any("fitted models" in note for note in results.manifest["notes"])
    inputs = results.manifest["inputs_sha256"]
    assert str(imported / "phone.yaml") in inputs
    again = run(tmp_path / "out" / "scenario.yaml", out=tmp_path / "again", figures=False)
    assert again.metrics["events_sha256"] == results.metrics["events_sha256"]


def test_show_tells_of_the_model(imported: Path) -> None:
    assert "gemm_model.float32" in morphling("profiles", "show", "./phone.yaml", cwd=imported)
    said = json.loads(morphling("profiles", "show", "./phone.yaml", "--json", cwd=imported))
    assert said["gemm_model"]["float32"]["ranges"]["batch"][0] == 1


def test_the_written_model_predicts_as_the_fitted_one(imported: Path) -> None:
    profile = load_profile("./phone.yaml", imported)
    fit = profile.gemm_model.fits["float32"].domain()
    samples = read_samples(imported / "phone-samples.csv")
    off = np.abs(predict(fit.parameters, samples) / samples.seconds - 1)
    assert np.median(off) < 0.05
    assert fit.ranges["m"] == (samples.m.min(), samples.m.max())


def test_a_scenario_without_models_is_refused_with_the_field(imported: Path) -> None:
    from morphling.run.build import build

    text = SCENARIO.format(profile="jetson-orin-nano", execution="{mode: profiled}")
    with pytest.raises(ScenarioError, match=r"^scenario:4:15: fleet\.0\.profile: jetson-orin-nano has no fitted model"):
        build(load_scenario(text))
    build(load_scenario(SCENARIO.format(profile="jetson-orin-nano", execution="{mode: profiled, missing: analytic}")))
    with pytest.raises(ScenarioError, match=r"execution\.missing: must be one of refuse, analytic"):
        build(load_scenario(SCENARIO.format(profile="jetson-orin-nano", execution="{mode: profiled, missing: no}")))
    half = SCENARIO.format(profile=imported / "phone.yaml", execution="{mode: profiled}").replace("float32", "float16")
    with pytest.raises(ScenarioError, match=r"fleet\.0\.profile: phone has a fitted model for float32, not for"):
        build(load_scenario(half))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["gemm_model"]["fits"]["float32"]["parameters"].update(peak="1 PFLOP/s"),
         "gemm_model: fits.float32.parameters.peak: 1 PFLOP/s is above the stated peak compute.float32"),
        (lambda d: d["gemm_model"]["fits"]["float32"]["parameters"].update(peak="0 FLOP/s"),
         "gemm_model.fits.float32.parameters.peak: '0 FLOP/s': a compute rate of zero is not allowed"),
        (lambda d: d["gemm_model"]["fits"]["float32"]["parameters"].update(memory_bandwidth=5e9),
         "gemm_model.fits.float32.parameters.memory_bandwidth: 5000000000.0: a memory bandwidth needs a unit"),
        (lambda d: d["gemm_model"]["fits"]["float32"]["parameters"].update(half_m=float("nan")),
         "gemm_model.fits.float32.parameters.half_m"),
        (lambda d: d["gemm_model"]["fits"]["float32"].update(rangs=d["gemm_model"]["fits"]["float32"].pop("ranges")),
         "gemm_model.fits.float32.rangs: unknown key, did you mean 'ranges'?"),
        (lambda d: d["gemm_model"]["fits"]["float32"]["ranges"].update(m=[9, 3]),
         "gemm_model.fits.float32.ranges: m: the lowest value comes first"),
        (lambda d: d["gemm_model"]["fits"]["float32"]["ranges"].pop("k"), "gemm_model.fits.float32.ranges: missing k"),
        (lambda d: d["gemm_model"]["fits"].update(float16=d["gemm_model"]["fits"]["float32"]),
         "gemm_model: fits.float16: compute has no float16"),
        (lambda d: d["gemm_model"]["samples"].update(path="none.csv"), "gemm_model.samples.path: no such file"),
        (lambda d: d["gemm_model"]["samples"].update(sha256="0" * 64), "it is not what this model was fitted to"),
        (lambda d: d["memory_reserved"].update(value="6 GB"), "memory_reserved: the reserve of 6 GB leaves nothing"),
        (lambda d: d["memory_bandwidth"].update(value=5e9), "memory_bandwidth.value: 5000000000.0: a memory bandwidth"),
        (lambda d: d["efficiency"]["float32"].update(value=1.01), "efficiency.float32.value: a share in (0, 1] is"),
    ],
)  # fmt: skip
def test_faults_of_the_model_name_their_place(imported: Path, tmp_path: Path, change, message: str) -> None:
    document = yaml.safe_load((imported / "phone.yaml").read_text())
    change(document)
    (tmp_path / "phone-samples.csv").write_bytes((imported / "phone-samples.csv").read_bytes())
    (tmp_path / "phone.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    with pytest.raises(ProfileError) as caught:
        load_profile("./phone.yaml", tmp_path)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path / 'phone.yaml'}:")


def test_a_base_keeps_its_numbers_and_bounds_the_rate() -> None:
    samples = parse_samples(csv_of(), "s.csv")
    made = measured_profile("mine", samples, csv_of(), DeviceFacts(base="jetson-orin-nano"))
    base = load_profile("jetson-orin-nano")
    assert made.document["memory"]["value"] == "8000000000 B"
    assert made.document["compute"]["float32"]["value"] == "1280000000000 FLOP/s"
    assert made.document["efficiency"]["float32"]["kind"] == "measured"
    assert made.document["efficiency"]["float16"]["value"] == base.efficiency["float16"].value
    assert "power_modes" not in made.document
    slow = measured_profile("mine", samples, csv_of(), DeviceFacts(base="jetson-orin-nano@7w"))
    assert slow.document["compute"]["float32"]["value"] != "1280000000000 FLOP/s"
    fast = parse_samples(csv_of(factor=0.001), "s.csv")
    with pytest.raises(InputError, match=r"above the peak of 1\.28 TFLOP/s \(compute\.float32 of jetson-orin-nano\)"):
        measured_profile("mine", fast, "", DeviceFacts(base="jetson-orin-nano"))
    with pytest.raises(InputError, match=r"above the peak of 1 GFLOP/s \(--peak\)"):
        measured_profile("mine", samples, "", DeviceFacts(memory="1 GB", peak="1 GFLOP/s"))
    with pytest.raises(InputError, match="a profile needs --memory"):
        measured_profile("mine", samples, "", DeviceFacts())


def test_nothing_is_written_over_and_nothing_half(imported: Path) -> None:
    before = sorted(p.name for p in imported.iterdir())
    said = morphling("profiles", "import-samples", "s.csv", "--name", "phone", "--memory", "6 GB", cwd=imported, code=2)
    assert "phone.yaml: exists already; nothing was written" in said
    (imported / "bad.csv").write_text("m,n,k,dtype,layout,ms\n1,1,1,float32,nn,x\n")
    said = morphling("profiles", "import-samples", "bad.csv", "--name", "q", "--memory", "6 GB", cwd=imported, code=2)
    assert "bad.csv:2: ms: a finite number above zero is needed, found 'x'" in said
    (imported / "bad.csv").unlink()
    assert sorted(p.name for p in imported.iterdir()) == before


def test_the_measuring_script_runs_elsewhere_and_is_imported(tmp_path: Path) -> None:
    script = morphling("profiles", "measuring-script", cwd=tmp_path)
    (tmp_path / "measure_gemm.py").write_text(script)
    ast.parse(script, feature_version=(3, 8))  # Jetsons have old Pythons
    command = [sys.executable, "-I", "measure_gemm.py", "--budget", "4", "--backend", "numpy", "--memory-mb", "8"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    samples = parse_samples(done.stdout, "out.csv")
    assert len(samples) >= 30
    assert {"host", "backend", "threads", "clock", "operands"} <= set(samples.facts)
    assert samples.facts["clock"] == "thread CPU time"


def test_calibrate_measures_this_host_and_goes_on_where_it_was(tmp_path: Path) -> None:
    done = morphling(
        "profiles", "calibrate", "--backend", "numpy", "--budget", "0.01 s", "--name", "h", cwd=tmp_path, code=1
    )
    assert "a fit needs 30; measure on with --resume" in done
    assert [p.name for p in tmp_path.iterdir()] == ["h-samples.part"]
    done = morphling(
        "profiles", "calibrate", "--backend", "numpy", "--budget", "5 s", "--name", "h", cwd=tmp_path, code=2
    )
    assert "of an interrupted calibration; go on with --resume" in done
    # A disturbed machine is refused in words and keeps its samples; here any outcome of these two is right.
    try:
        profile, _, _ = calibrate("h", tmp_path, budget_s=6.0, backend="numpy", resume=True)
    except RunError as error:
        assert "too busy" in str(error)  # noqa: PT017
        assert (tmp_path / "h-samples.part").exists()
        return
    written = write_profile(profile, tmp_path)
    assert [p.name for p in written] == ["h.yaml", "h-samples.csv", "h.png"]
    loaded = load_profile("./h.yaml", tmp_path)
    assert 0 < loaded.achieved_share["float32"] <= 1
    assert all(source.startswith("measured: ") for source in loaded.sources.values())


def test_what_calibrate_refuses(tmp_path: Path) -> None:
    said = morphling("profiles", "calibrate", "--host", "cuda", cwd=tmp_path, code=2)
    assert "partition of a CUDA device" in said
    assert "measuring-script" in said
    said = morphling("profiles", "calibrate", "--budget", "120", cwd=tmp_path, code=2)
    assert "needs a unit" in said
    said = morphling("profiles", "calibrate", "--backend", "numpy", "--dtype", "float16", cwd=tmp_path, code=1)
    assert "numpy multiplies float32 on the CPU alone" in said
    assert list(tmp_path.glob("*.yaml")) == []


def test_the_shapes_of_a_scenario_are_those_its_devices_get() -> None:
    text = SCENARIO.format(profile="jetson-orin-nano", execution="{mode: profiled}")
    shapes, remarks = scenario_shapes(text)
    assert 0 < len(shapes) <= 200
    assert remarks == []
    assert all(layout == "nn" and (lda, ldb, batch) == (k, n, 1) for _, n, k, layout, lda, ldb, batch in shapes)
    assert any(k == 768 for _, _, k, *_ in shapes)


def test_the_shapes_of_whole_layers_are_those_of_their_products() -> None:
    text = SCENARIO.format(profile="jetson-orin-nano", execution="{mode: profiled}")
    shapes, _ = scenario_shapes(text.replace("name: cleave", "name: gpipe"))
    assert {(n, k) for _, n, k, *_ in shapes} >= {(768, 768), (3072, 768), (768, 3072)}
