"""The vectorised shard cache against a dictionary a device."""

from __future__ import annotations

import numpy as np
import pytest

from morphling.planning.cache import ShardCache


class OneDevice:
    """The slow twin: one device, shards in a dict from the least to the most recently used."""

    def __init__(self, capacity):
        self.capacity, self.shards = capacity, {}
        self.hits = self.misses = self.evictions = self.refusals = 0

    def use(self, key, size, beside):
        if size == 0:
            return False
        hit = key in self.shards
        self.shards.pop(key, None)
        self.hits, self.misses = self.hits + hit, self.misses + (not hit)
        while self.shards and sum(self.shards.values()) + size + beside > self.capacity:
            del self.shards[next(iter(self.shards))]
            self.evictions += 1
        if size + beside <= self.capacity:
            self.shards[key] = size
        else:
            self.refusals += 1
        return hit


@pytest.mark.parametrize("seed", range(8))
def test_equals_the_slow_twin(seed):
    random = np.random.RandomState(seed)
    devices = 17
    capacity = random.randint(0, 300, devices)
    fast, slow = ShardCache(capacity), [OneDevice(c) for c in capacity]
    sizes = {}
    for _ in range(400):
        action = random.rand()
        if action < 0.03:
            gone = random.rand(devices) < 0.3
            fast.drop(gone)
            for i in np.flatnonzero(gone):
                slow[i].shards.clear()
        elif action < 0.06:
            tensors = set(random.randint(0, 12, 2).tolist())
            fast.forget(tensors)
            for one in slow:
                one.shards = {k: v for k, v in one.shards.items() if k[0] not in tensors}
        else:
            key = (int(random.randint(12)), int(random.randint(2)), int(random.randint(2)))
            size = sizes.setdefault(key, random.randint(0, 120, devices) * (random.rand(devices) < 0.8))
            beside = random.randint(0, 150, devices)
            part = size * (random.rand(devices) < 0.9)
            hit = fast.use(key, part, beside)
            assert hit.tolist() == [one.use(key, s, b) for one, s, b in zip(slow, part, beside, strict=True)]
        assert fast.cached_bytes.tolist() == [sum(one.shards.values()) for one in slow]
        for key in sizes:
            assert fast.holds(key).tolist() == [key in one.shards for one in slow]
    for name in ("hits", "misses", "evictions", "refusals"):
        assert getattr(fast, name) == sum(getattr(one, name) for one in slow)
    assert fast.hits > 50
    assert fast.evictions > 100


def test_least_recently_used_goes_first():
    cache = ShardCache([30])
    a, b, c = ((tensor, 0, 0) for tensor in (1, 2, 3))
    for key in (a, b):
        assert not cache.use(key, [10], [10])[0]
    assert cache.use(a, [10], [10])[0]
    cache.use(c, [10], [10])
    assert [bool(cache.holds(k)[0]) for k in (a, b, c)] == [True, False, True]
    assert (cache.hits, cache.misses, cache.evictions) == (1, 3, 1)


def test_a_working_set_pushes_shards_out_and_is_not_kept_itself():
    cache = ShardCache([30])
    cache.use((1, 0, 0), [10])
    cache.use((2, 0, 0), [25], [10])
    assert cache.cached_bytes.tolist() == [0]
    assert (cache.evictions, cache.refusals) == (1, 1)


def test_devices_without_bytes_take_no_part():
    cache = ShardCache([30, 30])
    cache.use((1, 0, 0), [10, 10])
    assert cache.use((1, 0, 0), [10, 0], [0, 30]).tolist() == [True, False]
    assert cache.cached_bytes.tolist() == [10, 10]


def test_another_size_under_the_same_key_is_refused():
    cache = ShardCache([30])
    cache.use((1, 0, 0), [10])
    with pytest.raises(ValueError, match="device 0 holds 10 bytes"):
        cache.use((1, 0, 0), [11])
    with pytest.raises(ValueError, match="negative"):
        cache.use((1, 0, 0), [-1])
    with pytest.raises(ValueError, match="capacity"):
        ShardCache([-1])


def test_rows_of_forgotten_keys_are_used_again():
    cache = ShardCache(np.full(3, 100))
    for tensor in range(1000):
        cache.use((tensor, 0, 0), [10, 20, 30])
    assert (cache.cached_bytes <= 100).all()
    assert len(cache._bytes) <= 64
    cache.forget(range(1000))
    assert not cache.cached_bytes.any()
