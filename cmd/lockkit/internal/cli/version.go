package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lockkit/lock/drivers"
)

// A versionInfo says what this program was made of.
type versionInfo struct {
	Version  string   `json:"version"`
	Revision string   `json:"revision,omitempty"`
	Go       string   `json:"go"`
	Platform string   `json:"platform"`
	Schemes  []string `json:"schemes"` // of the drivers compiled in
}

func newVersion() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:     "version",
		Short:   "Tell the version and the drivers compiled in",
		Example: "  lockkit version\n  lockkit version --json",
		Args:    noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return readVersion().write(c.OutOrStdout(), asJSON)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "write it as JSON")
	return c
}

func readVersion() versionInfo {
	v := versionInfo{
		Version: "(devel)", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
		Schemes: drivers.Schemes(),
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if info.Main.Version != "" {
		v.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			v.Revision = s.Value + v.Revision
		case s.Key == "vcs.modified" && s.Value == "true":
			v.Revision += " (modified)"
		}
	}
	return v
}

func (v versionInfo) write(w io.Writer, asJSON bool) error {
	if asJSON {
		text, err := json.MarshalIndent(v, "", "  ")
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(w, string(text))
		return err
	}
	_, err := io.WriteString(w, v.text())
	return err
}

func (v versionInfo) text() string {
	text := fmt.Sprintf("lockkit %s, %s %s\n", v.Version, v.Go, v.Platform)
	if v.Revision != "" {
		text += "revision " + v.Revision + "\n"
	}
	return text + "drivers for " + strings.Join(v.Schemes, "://, ") + "://\n"
}
