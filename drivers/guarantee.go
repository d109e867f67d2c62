package drivers

import (
	"fmt"
	"strings"
)

// Guarantee is a set of promises.
type Guarantee uint8

const (
	// Fencing: the grants of one name carry strictly rising tokens.
	Fencing Guarantee = 1 << iota
	// Durable: no token that was acknowledged is forgotten or given again
	// after a crash, a restart or a failover that the service is set up for.
	Durable
	// Fair: waits are served in the order in which they reached the service.
	Fair
	// Prompt: waiters are woken by the service; they need not poll.
	Prompt

	// Correctness is what a lock needs on whose exclusion data depends.
	Correctness = Fencing | Durable
	// Efficiency needs no promise: a second run only wastes work.
	Efficiency Guarantee = 0
)

// Guarantees lists the single promises in their order.
var Guarantees = []Guarantee{Fencing, Durable, Fair, Prompt}

var guaranteeNames = map[Guarantee]string{
	Fencing: "fencing", Durable: "durable", Fair: "fair", Prompt: "prompt",
}

// Has reports whether g contains all of want.
func (g Guarantee) Has(want Guarantee) bool { return g&want == want }

// Names lists the promises of g, such as ["fencing", "prompt"].
func (g Guarantee) Names() []string {
	names := []string{}
	for _, one := range Guarantees {
		if g.Has(one) {
			names = append(names, guaranteeNames[one])
		}
	}
	return names
}

// String is the promises of g, such as "fencing,durable", or "none".
func (g Guarantee) String() string {
	if g == 0 {
		return "none"
	}
	return strings.Join(g.Names(), ",")
}

// MarshalText writes the form that UnmarshalText reads.
func (g Guarantee) MarshalText() ([]byte, error) { return []byte(g.String()), nil }

// UnmarshalText reads promises divided by commas. Beside the names of single
// promises it takes "correctness", "efficiency" and "none".
func (g *Guarantee) UnmarshalText(text []byte) error {
	var set Guarantee
	for word := range strings.SplitSeq(string(text), ",") {
		one, err := parseGuarantee(strings.TrimSpace(word))
		if err != nil {
			return err
		}
		set |= one
	}
	*g = set
	return nil
}

func parseGuarantee(word string) (Guarantee, error) {
	switch word {
	case "correctness":
		return Correctness, nil
	case "efficiency", "none", "":
		return Efficiency, nil
	}
	for g, name := range guaranteeNames {
		if name == word {
			return g, nil
		}
	}
	return 0, fmt.Errorf("unknown promise %q: use efficiency, correctness, fencing, durable, fair or prompt", word)
}
