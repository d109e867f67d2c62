//go:build unix && !linux

package servers

import (
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// dieWithParent does nothing: only Linux can. The reaper does it.
func dieWithParent(*syscall.SysProcAttr) {}

// children lists the direct children of a process.
func children(pid int) []int {
	out, err := exec.Command("ps", "-A", "-o", "pid=,ppid=").Output()
	if err != nil {
		return nil
	}
	var kids []int
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		if len(fields) == 2 && fields[1] == strconv.Itoa(pid) {
			if kid, err := strconv.Atoi(fields[0]); err == nil {
				kids = append(kids, kid)
			}
		}
	}
	return kids
}

func standsOrGone(pid int) bool {
	state := state(pid)
	return strings.HasPrefix(state, "T") || ended(state)
}

func gone(pid int) bool { return ended(state(pid)) }

func ended(state string) bool { return state == "" || strings.HasPrefix(state, "Z") }

func state(pid int) string {
	out, _ := exec.Command("ps", "-o", "state=", "-p", strconv.Itoa(pid)).Output()
	return strings.TrimSpace(string(out))
}
