package etcdlease

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockkit/lock/drivers"
)

// Inspect implements drivers.Inspector.
func (d *Driver) Inspect(ctx context.Context, name string) (drivers.Holder, error) {
	if err := drivers.CheckName(name); err != nil {
		return drivers.Holder{}, err
	}
	if err := d.enter(); err != nil {
		return drivers.Holder{}, err
	}
	defer d.calls.Done()
	bounded, cancel := context.WithTimeout(ctx, requestBound)
	defer cancel()
	h, err := d.holder(bounded, name)
	if errors.Is(err, drivers.ErrNotHeld) {
		return drivers.Holder{}, err
	}
	return h, d.explain(ctx, err)
}

func (d *Driver) holder(ctx context.Context, name string) (drivers.Holder, error) {
	resp, _, err := insist(ctx, d.client, func(ctx context.Context) (*clientv3.GetResponse, error) {
		return d.client.Get(ctx, d.keys.queue(name), clientv3.WithFirstCreate()...)
	})
	if err != nil {
		return drivers.Holder{}, err
	}
	kv := first(resp.Kvs)
	if kv == nil {
		return drivers.Holder{}, drivers.ErrNotHeld
	}
	h := holder(kv)
	left, _, err := insist(ctx, d.client, func(ctx context.Context) (*clientv3.LeaseTimeToLiveResponse, error) {
		return d.client.TimeToLive(ctx, clientv3.LeaseID(kv.Lease))
	})
	if err == nil {
		h.Remaining = max(0, time.Duration(left.TTL)*time.Second)
	}
	return h, err
}

// Check implements drivers.Checker.
func (d *Driver) Check(ctx context.Context) (drivers.Report, error) {
	if err := d.enter(); err != nil {
		return drivers.Report{}, err
	}
	defer d.calls.Done()
	bounded, cancel := context.WithTimeout(ctx, requestBound)
	defer cancel()
	members := d.statuses(bounded)
	r := drivers.Report{Product: "etcd", Servers: d.servers, Promises: d.promises()}
	var faults []error
	for _, m := range members {
		if m.err != nil {
			faults = append(faults, m.err)
			r.Warnings = append(r.Warnings, fmt.Sprintf("etcd %s: does not answer: %v", m.addr, plain(m.err)))
			continue
		}
		if r.Version == "" || before(m.Version, r.Version) {
			r.Version = m.Version
		}
		r.Warnings = append(r.Warnings, m.warnings()...)
	}
	if len(faults) == len(members) {
		return drivers.Report{}, d.explain(ctx, errors.Join(faults...))
	}
	r.Assumptions = []string{"etcd: no member is restored from a backup or brought back without its data"}
	return r, nil
}

func (d *Driver) promises() []drivers.Promise {
	var all []drivers.Promise
	for _, g := range drivers.Guarantees {
		p := drivers.Promise{Guarantee: g, Made: d.Guarantees().Has(g)}
		if !p.Made {
			p.Why = d.errorf("not read yet: whether all members sync their log before they answer (--unsafe-no-fsync)").Error()
		}
		all = append(all, p)
	}
	return all
}

// A member is one server's answer, or why there is none.
type member struct {
	addr string
	*clientv3.StatusResponse
	err error
}

func (d *Driver) statuses(ctx context.Context) []member {
	endpoints := d.client.Endpoints()
	members := make([]member, len(endpoints))
	var all sync.WaitGroup
	for i, e := range endpoints {
		all.Go(func() {
			status, err := d.client.Status(ctx, e)
			members[i] = member{addr: addresses([]string{e})[0], StatusResponse: status, err: err}
		})
	}
	all.Wait()
	return members
}

func (m member) warnings() []string {
	var all []string
	warn := func(format string, args ...any) {
		all = append(all, fmt.Sprintf("etcd %s: ", m.addr)+fmt.Sprintf(format, args...))
	}
	if safe := safeVersion(m.Version); safe != "" {
		warn("version %s may renew a lease that has ended or was revoked, so that two holders believe: upgrade to %s", m.Version, safe)
	}
	if m.IsLearner {
		warn("is a learner, which serves no locks: leave it out")
	}
	for _, e := range m.Errors {
		warn("%s", e)
	}
	return all
}

// safeVersions are the first of each minor release that don't renew a lease
// that has ended.
var safeVersions = []string{"3.4.38", "3.5.23", "3.6.5"}

// safeVersion is what to upgrade to, or nothing.
func safeVersion(version string) string {
	for _, safe := range safeVersions {
		if v, s := numbers(version), numbers(safe); slices.Equal(v[:2], s[:2]) {
			if before(version, safe) {
				return safe
			}
			return ""
		}
	}
	if last := safeVersions[len(safeVersions)-1]; before(version, last) {
		return last
	}
	return ""
}

func before(a, b string) bool { return slices.Compare(numbers(a), numbers(b)) < 0 }

// numbers are the three of a version, such as 3.6.5-rc.1.
func numbers(version string) []int {
	core, _, _ := strings.Cut(version, "-")
	parts := strings.SplitN(core, ".", 3)
	n := make([]int, 3)
	for i, p := range parts {
		n[i], _ = strconv.Atoi(p)
	}
	return n
}
