package servers

import (
	_ "embed"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
)

//go:embed reaper.sh
var reaperScript string

// reaper is the shell that cleans up when this process has ended without doing so.
type reaper struct {
	cmd  *exec.Cmd
	pipe *os.File // nobody else holds it: its end of file is the end of this process
}

func startReaper(dir, executable string) (*reaper, error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer read.Close()
	// No output: go test would wait for whoever holds its standard output.
	// The script is a variable so that the list of processes stays readable.
	cmd := exec.Command("/bin/sh", "-c", `eval "$SCRIPT"`, "lockkit-reaper", dir, executable)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "SCRIPT=" + reaperScript}
	cmd.Stdin = read
	cmd.SysProcAttr = ownGroup()
	if err := cmd.Start(); err != nil {
		write.Close()
		return nil, fmt.Errorf("start the reaper: %w", err)
	}
	return &reaper{cmd: cmd, pipe: write}, nil
}

// tell replaces the list of processes to kill. One short write to a pipe is never torn.
func (r *reaper) tell(procs map[int]*process) {
	var line strings.Builder
	for _, pid := range slices.Sorted(maps.Keys(procs)) {
		if procs[pid].finishes {
			line.WriteString("~")
		}
		fmt.Fprintf(&line, "%d ", pid)
	}
	_, _ = r.pipe.WriteString(line.String() + "\n")
}

// close lets the reaper end. There must be nothing left for it to do.
func (r *reaper) close() {
	r.pipe.Close()
	_ = r.cmd.Wait()
}
