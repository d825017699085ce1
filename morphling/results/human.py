"""Numbers as people read them: 612.3 s, 3.41 GiB, 87.2 %."""

from __future__ import annotations

__all__ = ["METRIC_UNITS", "bytes_text", "count_text", "digits", "human", "seconds_text"]

METRIC_UNITS: dict[str, str] = {
    "iteration_time_s": "s",
    "iteration_time_min_s": "s",
    "iteration_time_max_s": "s",
    "iterations": "",
    "makespan_s": "s",
    "compute_s": "device-s",
    "download_s": "device-s",
    "upload_s": "device-s",
    "coordinator_compute_s": "s",
    "bytes_down": "B",
    "bytes_up": "B",
    "peak_device_memory_bytes": "B",
    "coordinator_peak_memory_bytes": "B",
    "device_utilization": "1",
    "energy_j": "J",
    "energy_idle_j": "J",
    "energy_compute_j": "J",
    "energy_radio_up_j": "J",
    "energy_radio_down_j": "J",
    "hottest_case_c": "degC",
    "lowest_clock": "1",
    "throttled_devices": "",
    "throttled_s": "device-s",
    "devices": "",
    "devices_used": "",
    "dispatches": "",
    "rows": "",
    "lost_rows": "",
    "loss_instants": "",
    "unrecovered_losses": "",
    "recovery_time_s": "s",
    "paused_s": "s",
    "pauses": "",
    "first_pause_s": "s",
    "battery_departures": "",
    "lowest_battery_share": "1",
    "recovery_detection_s": "s",
    "recovery_planning_s": "s",
    "recovery_waiting_s": "s",
    "recovery_redispatch_s": "s",
    "recovery_setup_s": "s",
    "recovery_recompute_s": "s",
    "recovery_moved_bytes": "B",
    "discarded_compute_s": "device-s",
    "iteration_time_before_loss_s": "s",
    "iteration_time_after_recovery_s": "s",
    "wall_time_s": "s",
    "events_sha256": "",
}
"""The unit of each metric, in the order in which they are shown."""

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_SMALL = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_DECIMAL = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def bytes_text(size: float) -> str:
    """Bytes with a binary prefix and three significant digits; below 1 KiB the exact number."""
    value, unit = float(size), 0
    while abs(value) >= 1023.5 and unit < len(_BINARY) - 1:
        value, unit = value / 1024, unit + 1
    return f"{size:,.0f} B" if unit == 0 else f"{digits(value, 3)} {_BINARY[unit]}"


def seconds_text(seconds: float) -> str:
    """A duration with four significant digits: ``412 ns`` … ``612.3 s``, ``54,210 s (15 h 4 min)``."""
    if seconds == 0:
        return "0 s"
    for scale, unit in _SMALL:
        if abs(seconds) >= scale * 0.99995:
            return f"{digits(seconds / scale, 4)} {unit}{_clock(seconds)}"
    return f"{seconds:.3g} s"


def _clock(seconds: float) -> str:
    if seconds < 3600:
        return ""
    minutes = round(seconds / 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f" ({days} d {hours} h)" if days else f" ({hours} h {minutes} min)"


def count_text(count: int) -> str:
    """A count in full, in groups of three."""
    return f"{count:,}"


def digits(value: float, count: int) -> str:
    """``value`` to ``count`` significant digits, but with all its whole digits, in groups of three."""
    whole = len(f"{abs(value):.0f}")
    return f"{value:,.{max(0, count - whole)}f}"


def human(name: str, value: object) -> str:
    """The value of a metric for people; ``not available`` for None."""
    unit = METRIC_UNITS.get(name, "")
    if value is None:
        return "not available"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if unit in {"s", "device-s"}:
        return seconds_text(float(value)) if unit == "s" else f"{digits(float(value), 4)} device-s"
    if unit == "B":
        return bytes_text(value)
    if unit == "1":
        return f"{digits(100 * value, 3)} %"
    if unit == "J":
        return _joules(float(value))
    if unit == "degC":
        return f"{value:.1f} °C"
    return count_text(value) if isinstance(value, int) else f"{value:.4g}"


def _joules(value: float) -> str:
    for scale, prefix in _DECIMAL:
        if abs(value) >= scale:
            return f"{digits(value / scale, 3)} {prefix}J"
    return f"{digits(value, 3)} J"
