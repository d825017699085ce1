"""The closed lane: a whole dispatch resolved row by row, where no capacity is shared."""

from __future__ import annotations

from morphling.engine.kernels.heat import heat_run
from morphling.engine.kernels.links import transfer_end
from morphling.engine.kernels.records import FAR, LATENCY, MILLIBITS


def run_closed(k, dev, rows, out, now, cut, coordinator, part_of, part, h):
    """Resolve the rows of one dispatch, in table order, when links are private and full duplex.

    Only those whose device has ``part_of`` equal to ``part``; all if ``part`` < 0.  Rows of different devices that wait
    for none have nothing in common, so parts may run side by side.

    ``cut`` is when the dispatch is withdrawn (FAR: never).  Returns 0, or ``4 i + why`` for the first row i that can
    never settle (why 1: its link never delivers; 2: its trace has ended).
    """
    trouble = 0
    for i in range(len(rows.device)):
        d = rows.device[i]
        if part >= 0 and part_of[d] != part:
            continue
        ready = now + rows.release[i]
        doomed = FAR
        for j in range(rows.dep_ptr[i], rows.dep_ptr[i + 1]):
            before = rows.dep_idx[j]
            at = out.settled[before]
            if out.lost[before]:
                if at < doomed:
                    doomed = at
            elif at > ready:
                ready = at
        limit = dev.off[d]
        if limit < now:
            limit = now
        withdrawn = False
        if cut < limit:
            limit = cut
            withdrawn = True
        if doomed < FAR:
            out.down_start[i] = out.down_end[i] = out.comp_start[i] = out.comp_end[i] = -1
            out.up_start[i] = out.up_end[i] = -1
            at = min(doomed, limit)
            out.settled[i] = at
            out.lost[i] = 1
            if h is not None:
                out.worked[i] = 0
            if at >= dev.off[d]:  # the device leaves at that instant too: nothing moves up any more
                at = dev.off[d] + 1
            if rows.bytes_in[i] > 0 or rows.overlap[i] == 0:  # until then it stood in its queues, the next behind it
                dev.free_down[d] = max(dev.free_down[d], at)
            dev.free_compute[d] = max(dev.free_compute[d], at)
            if rows.bytes_out[i] > 0 or rows.overlap[i] == 0:
                dev.free_up[d] = max(dev.free_up[d], at)
            continue
        duration = rows.duration[i]
        worked = duration
        stretch = 0.0
        if h is not None:  # without heat this is not compiled
            worked = 0
            if duration > 0:
                stretch = rows.clocked[i] / duration
        fd, fc, fu = dev.free_down[d], dev.free_compute[d], dev.free_up[d]
        why = 0
        if d == coordinator:
            ds = de = ready
            cs = max(ready, fc)
            ce = cs + duration
            us = ue = settled = ce
            nd, nc, nu = fd, ce, fu
            if h is not None:
                worked = max(min(ce, limit) - cs, 0)
        else:
            bits_in, bits_out = rows.bytes_in[i] * MILLIBITS, rows.bytes_out[i] * MILLIBITS
            latency = k.device[d, LATENCY]
            tiles = rows.overlap[i]
            if tiles == 0:
                begin = max(max(ready, fd), max(fc, fu))
                ds = cs = us = begin
                nd = transfer_end(k, d, False, begin, bits_in)
                nu = transfer_end(k, d, True, begin, bits_out)
                if nd < 0 or nu < 0:
                    why = 2
                    nd = FAR if nd < 0 else nd
                    nu = FAR if nu < 0 else nu
                nc = ce = begin + duration
                if h is not None:
                    nc = ce = heat_run(h, d, begin, duration, stretch, limit, False)
                    worked = max(min(ce, limit) - begin, 0)
                de = nd + latency if bits_in > 0 else nd
                ue = nu + latency if bits_out > 0 else nu
                settled = max(max(de, ce), ue)
            else:
                ds = ready
                if bits_in > 0 and fd > ds:
                    ds = fd
                nd, nc, nu = ds, fc, fu
                de = ready
                cs = us = -1
                ce = ue = -1
                in_each, work_each, out_each = bits_in // tiles, duration // tiles, bits_out // tiles
                in_rest, work_rest, out_rest = (
                    bits_in - in_each * tiles,
                    duration - work_each * tiles,
                    bits_out - out_each * tiles,
                )
                in_more = work_more = out_more = 0
                for tile in range(tiles):  # tile j gets x (j + 1) // tiles - x j // tiles, without dividing each time
                    in_now, work_now, out_now = in_each, work_each, out_each
                    in_more += in_rest
                    if in_more >= tiles:
                        in_more -= tiles
                        in_now += 1
                    work_more += work_rest
                    if work_more >= tiles:
                        work_more -= tiles
                        work_now += 1
                    out_more += out_rest
                    if out_more >= tiles:
                        out_more -= tiles
                        out_now += 1
                    if bits_in > 0:
                        nd = transfer_end(k, d, False, nd, in_now)
                        if nd < 0:
                            why = 2
                            nd = FAR
                        de = nd + latency
                    start = max(de, nc)
                    if tile == 0:
                        cs = start
                    nc = ce = start + work_now
                    if h is not None:
                        nc = ce = heat_run(h, d, start, work_now, stretch, limit, False)
                        worked += max(min(ce, limit) - start, 0)
                    if bits_out > 0:
                        start = max(nc, nu)
                        if tile == 0:
                            us = start
                        nu = transfer_end(k, d, True, start, out_now)
                        if nu < 0:
                            why = 2
                            nu = FAR
                        ue = nu + latency
                if bits_in == 0:
                    nd = fd
                if bits_out == 0:
                    us = ue = ce
                settled = ue
        if (settled > limit and limit < FAR) or dev.off[d] <= now:  # on an absent device nothing is instant
            out.lost[i] = 1
            if withdrawn:  # a stage that had not begun stood in its queue until now; one that had is cut short
                if nd != fd:
                    nd = max(fd, limit) if ds >= limit else min(nd, limit)
                nc = max(fc, limit) if cs >= limit else min(nc, limit)
                if nu != fu:
                    nu = max(fu, limit) if us >= limit else min(nu, limit)
            settled = limit
            if de > limit:
                de = -1
            if ds >= limit:
                ds = de = -1
            if ce > limit:
                ce = -1
            if cs >= limit:
                cs = ce = -1
            if ue > limit:
                ue = -1
            if us >= limit:
                us = ue = -1
        else:
            out.lost[i] = 0
            if settled >= FAR and trouble == 0:
                trouble = 4 * i + (why if why > 0 else 1)
        dev.free_down[d] = nd
        dev.free_compute[d] = nc
        dev.free_up[d] = nu
        out.down_start[i] = ds
        out.down_end[i] = de
        out.comp_start[i] = cs
        out.comp_end[i] = ce
        out.up_start[i] = us
        out.up_end[i] = ue
        out.settled[i] = settled
        if h is not None:
            out.worked[i] = worked
    return trouble
