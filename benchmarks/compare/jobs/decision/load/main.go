// The load: requests on schedule, whether or not earlier ones were answered, over connections that stay open.
//
// The latency of a request counts from the moment at which it was due: if all connections wait, or this program was
// late itself, that is part of it. Every sample is kept. Prints one JSON object.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"sort"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

var (
	port        = flag.Int("port", 8080, "of the handler, on this machine")
	rate        = flag.Float64("rate", 2000, "requests a second")
	seconds     = flag.Float64("seconds", 5, "that are measured")
	warm        = flag.Float64("warm", 1, "seconds before, at the same rate, that are not")
	connections = flag.Int("connections", 32, "")
	cards       = flag.Int("cards", 5000, "used in turns")
	check       = flag.Bool("check", true, "whether the answers know the last use")
	seed        = flag.Int("seed", 0, "makes the places of this run differ from those of another")
	trace       = flag.String("trace", "", "a file for all samples: seconds since the start, milliseconds")
)

type sample struct {
	due float64 // seconds since the start
	ms  float64
}

// place of the nth use of a card: now and then it moves.
func place(card, turn int) string {
	return "place-" + strconv.Itoa((card*31+*seed*7+turn/2*17)%100)
}

type connection struct {
	net.Conn
	reader *bufio.Reader
	buffer bytes.Buffer
}

func dial() (*connection, error) {
	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", *port))
	if err != nil {
		return nil, err
	}
	return &connection{Conn: conn, reader: bufio.NewReader(conn)}, nil
}

// ask sends one request and reads its answer: the status and the body.
func (c *connection) ask(body []byte) (int, []byte, error) {
	c.buffer.Reset()
	fmt.Fprintf(&c.buffer, "POST /decide HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\n", *port)
	fmt.Fprintf(&c.buffer, "Content-Length: %d\r\n\r\n", len(body))
	c.buffer.Write(body)
	c.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := c.Write(c.buffer.Bytes()); err != nil {
		return 0, nil, err
	}
	line, err := c.reader.ReadSlice('\n')
	if err != nil {
		return 0, nil, err
	}
	status, err := strconv.Atoi(string(bytes.Fields(line)[1]))
	if err != nil {
		return 0, nil, err
	}
	length := 0
	for {
		line, err = c.reader.ReadSlice('\n')
		if err != nil {
			return 0, nil, err
		}
		if len(bytes.TrimSpace(line)) == 0 {
			break
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		if bytes.EqualFold(name, []byte("content-length")) {
			if length, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil {
				return 0, nil, err
			}
		}
	}
	answer := make([]byte, length)
	_, err = io.ReadFull(c.reader, answer)
	return status, answer, err
}

func main() {
	flag.Parse()
	total := int((*warm + *seconds) * *rate)
	samples := make([]sample, total)
	answered := make([]bool, total)
	var next, failed, wrong atomic.Int64
	var ended sync.WaitGroup
	started := time.Now().Add(50 * time.Millisecond)
	work := func() {
		defer ended.Done()
		conn, err := dial()
		if err != nil {
			log.Fatal(err)
		}
		for {
			number := int(next.Add(1) - 1)
			if number >= total {
				return
			}
			due := started.Add(time.Duration(float64(number) / *rate * 1e9))
			card, turn := number%*cards, number / *cards
			name, where := fmt.Sprintf("card-%d", card), place(card, turn)
			body := fmt.Appendf(nil, `{"card":"%s","place":"%s","amount":9.5}`, name, where)
			time.Sleep(time.Until(due))
			status, answer, err := conn.ask(body)
			took := time.Since(due)
			samples[number] = sample{due.Sub(started).Seconds(), float64(took.Nanoseconds()) / 1e6}
			answered[number] = true
			var found struct {
				Card  string `json:"card"`
				Fraud bool   `json:"fraud"`
			}
			if err != nil || status != 200 || json.Unmarshal(answer, &found) != nil || found.Card != name {
				failed.Add(1)
				if err != nil {
					conn.Close()
					if conn, err = dial(); err != nil {
						log.Fatal(err)
					}
				}
			} else if *check && turn > 0 && found.Fraud != (where != place(card, turn-1)) {
				wrong.Add(1)
			}
		}
	}
	for range *connections {
		ended.Add(1)
		go work()
	}
	ended.Wait()
	took := time.Since(started).Seconds()

	var kept []float64
	last := 0.0
	for number, each := range samples {
		if answered[number] && each.due >= *warm {
			kept = append(kept, each.ms)
			last = max(last, each.due+each.ms/1000)
		}
	}
	if *trace != "" {
		file, err := os.Create(*trace)
		if err != nil {
			log.Fatal(err)
		}
		out := bufio.NewWriter(file)
		for _, each := range samples {
			fmt.Fprintf(out, "%.6f %.4f\n", each.due, each.ms)
		}
		out.Flush()
		file.Close()
	}
	sort.Float64s(kept)
	at := func(share float64) float64 { return kept[min(int(float64(len(kept))*share), len(kept)-1)] }
	json.NewEncoder(os.Stdout).Encode(map[string]float64{
		"rate": float64(len(kept)) / (last - *warm), "seconds": took,
		"requests": float64(len(kept)), "errors": float64(failed.Load()), "wrong": float64(wrong.Load()),
		"p50": at(0.5), "p90": at(0.9), "p99": at(0.99), "p99.9": at(0.999), "max": at(1),
	})
}
