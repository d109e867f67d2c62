//go:build unix

package servers

import (
	"errors"
	"os"
	"os/user"
	"strconv"
	"syscall"
	"time"
)

const canStart = true

// owner is a user to run a server as.
type owner struct{ uid, gid uint32 }

// lookupOwner returns the first of the users that exists.
func lookupOwner(names ...string) (*owner, error) {
	for _, name := range names {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if errors.Join(err1, err2) == nil {
			return &owner{uint32(uid), uint32(gid)}, nil
		}
	}
	return nil, errors.New("no such user")
}

// ownGroup keeps a terminal's interrupt away from the child.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

func attributes(c command) *syscall.SysProcAttr {
	attr := ownGroup()
	if !c.finishes {
		dieWithParent(attr)
	}
	if c.owner != nil {
		attr.Credential = &syscall.Credential{Uid: c.owner.uid, Gid: c.owner.gid}
	}
	return attr
}

// pauseTree stops the parent first: then it makes no more children.
func pauseTree(pid int) error {
	if err := stopOne(pid); err != nil {
		return err
	}
	for _, child := range children(pid) {
		if err := stopOne(child); err != nil && !errors.Is(err, syscall.ESRCH) {
			return err
		}
	}
	return nil
}

// stopOne returns when the process stands: the signal alone is only a request.
func stopOne(pid int) error {
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return err
	}
	for !standsOrGone(pid) {
		time.Sleep(time.Millisecond)
	}
	return nil
}

func resumeTree(pid int) error {
	for _, child := range children(pid) {
		_ = syscall.Kill(child, syscall.SIGCONT) // it may have ended
	}
	return syscall.Kill(pid, syscall.SIGCONT)
}

// waitGone asks again and again: nobody tells us when grandchildren are gone. A number may be given
// away again at once, hence the bound.
func waitGone(pids []int, deadline time.Time) {
	for _, pid := range pids {
		for !gone(pid) && time.Now().Before(deadline) {
			time.Sleep(time.Millisecond)
		}
	}
}

// killTree kills a child of this process with its children. They may have left its group, and those
// of a dead parent cannot be found: so the parent is stopped, its children are listed, and then all
// are killed, the parent first, so that it does not see their end.
func killTree(pid int, done <-chan struct{}) {
	var kids []int
	if stopOne(pid) == nil {
		kids = children(pid)
	}
	_ = syscall.Kill(-pid, syscall.SIGKILL)
	for _, kid := range kids {
		_ = syscall.Kill(kid, syscall.SIGKILL)
	}
	<-done
	waitGone(kids, time.Now().Add(10*time.Second))
}

func chown(file string, o *owner) error { return os.Lchown(file, int(o.uid), int(o.gid)) }
