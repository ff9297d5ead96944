// The decision in Go: net/http and franz-go. Arguments: kind, address, topic, port, folder.
//
// A map of the cards' last uses is fed from the log by a goroutine; a request looks there, publishes the use, and is
// answered when the log has it on all in-sync replicas.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

type use struct {
	Card   string  `json:"card"`
	Place  string  `json:"place"`
	Amount float64 `json:"amount"`
}

type decision struct {
	Card  string `json:"card"`
	Fraud bool   `json:"fraud"`
}

// table holds the last use of each card.
type table struct {
	lock sync.RWMutex
	last map[string]use
}

func (t *table) get(card string) (use, bool) {
	t.lock.RLock()
	defer t.lock.RUnlock()
	found, ok := t.last[card]
	return found, ok
}

// follow feeds the table for ever, and closes caughtUp when it has all that was in the log at the start.
func (t *table) follow(client *kgo.Client, ends map[int32]int64, caughtUp chan<- struct{}) {
	settle := func(partition int32, next int64) {
		if end, waits := ends[partition]; waits && next >= end {
			delete(ends, partition)
			if len(ends) == 0 {
				close(caughtUp)
			}
		}
	}
	for {
		fetches := client.PollFetches(context.Background())
		if fetches.IsClientClosed() {
			return
		}
		fetches.EachError(func(_ string, _ int32, err error) { log.Fatal(err) })
		t.lock.Lock()
		fetches.EachRecord(func(record *kgo.Record) {
			var found use
			if err := json.Unmarshal(record.Value, &found); err == nil {
				t.last[string(record.Key)] = found
			}
			settle(record.Partition, record.Offset+1)
		})
		t.lock.Unlock()
	}
}

// endsOf says where the partitions that are not empty end now.
func endsOf(client *kgo.Client, topic string) (map[int32]int64, error) {
	metadata := kmsg.NewPtrMetadataRequest()
	asked := kmsg.NewMetadataRequestTopic()
	asked.Topic = kmsg.StringPtr(topic)
	metadata.Topics = append(metadata.Topics, asked)
	known, err := metadata.RequestWith(context.Background(), client)
	if err != nil {
		return nil, err
	}
	request := kmsg.NewPtrListOffsetsRequest()
	request.ReplicaID = -1
	of := kmsg.NewListOffsetsRequestTopic()
	of.Topic = topic
	for _, each := range known.Topics[0].Partitions {
		partition := kmsg.NewListOffsetsRequestTopicPartition()
		partition.Partition = each.Partition
		partition.Timestamp = -1
		of.Partitions = append(of.Partitions, partition)
	}
	request.Topics = append(request.Topics, of)
	answer, err := request.RequestWith(context.Background(), client)
	if err != nil {
		return nil, err
	}
	if len(answer.Topics) == 0 || len(of.Partitions) == 0 {
		return nil, errors.New("the log does not know the topic yet")
	}
	ends := map[int32]int64{}
	for _, each := range answer.Topics[0].Partitions {
		if each.Offset > 0 {
			ends[each.Partition] = each.Offset
		}
	}
	return ends, nil
}

func main() {
	address, topic, port := os.Args[2], os.Args[3], os.Args[4]
	client, err := kgo.NewClient(
		kgo.SeedBrokers(address),
		kgo.DefaultProduceTopic(topic),
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.ProducerLinger(0),
		kgo.ProducerBatchCompression(kgo.NoCompression()),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchMinBytes(1),
	)
	if err != nil {
		log.Fatal(err)
	}
	ends, err := endsOf(client, topic)
	for tries := 1; err != nil && tries < 50; tries++ {
		time.Sleep(100 * time.Millisecond)
		ends, err = endsOf(client, topic)
	}
	if err != nil {
		log.Fatal(err)
	}
	uses := &table{last: map[string]use{}}
	caughtUp := make(chan struct{})
	if len(ends) == 0 {
		close(caughtUp)
	}
	go uses.follow(client, ends, caughtUp)
	<-caughtUp

	decide := func(answer http.ResponseWriter, request *http.Request) {
		var asked use
		if err := json.NewDecoder(request.Body).Decode(&asked); err != nil {
			http.Error(answer, err.Error(), http.StatusBadRequest)
			return
		}
		before, known := uses.get(asked.Card)
		value, err := json.Marshal(asked)
		if err == nil {
			record := &kgo.Record{Key: []byte(asked.Card), Value: value}
			err = client.ProduceSync(request.Context(), record).FirstErr()
		}
		if err != nil {
			http.Error(answer, err.Error(), http.StatusServiceUnavailable)
			return
		}
		answer.Header().Set("Content-Type", "application/json")
		body, _ := json.Marshal(decision{asked.Card, known && before.Place != asked.Place})
		answer.Write(body)
	}
	http.HandleFunc("POST /decide", decide)
	fmt.Println("ready")
	log.Fatal(http.ListenAndServe("127.0.0.1:"+port, nil))
}
